"""`lstm_step`: one step of an LSTM, the product of its state with a sparse weight and the gates, in one kernel.

A product of few rows takes little longer than its launch, and so do the gates: in one kernel a step takes half as long. The state
is passed on feature-major, so that a kept input is contiguous.
"""

from dataclasses import dataclass, replace
from math import ceil

import torch
from torch import Tensor

from sparsefront_kernels import operands
from sparsefront_kernels.format import SparseFormat
from sparsefront_kernels.kernel_entry import KernelEntry
from sparsefront_kernels.linear import SparseLinear
from sparsefront_kernels.recurrent.gates import lstm_gates_reference

NAME = "lstm_step"
UNITS = 16  # hidden units per program, with four gates each
CHUNK = 16  # kept inputs are padded to a multiple
DTYPES = (torch.float16, torch.bfloat16)


@dataclass(frozen=True, eq=False)
class StepWeight:
    """The packed W [4H, H].

    Args:
        panels: [H / 16, 64, kept] in the weight's dtype: for 16 units, the rows of input, forget, cell and output gate, with the
            inputs that any of them keeps.
        lists: int32 [H / 16, kept]: those inputs, padded with -1.
    """

    panels: Tensor
    lists: Tensor

    def dense(self) -> Tensor:
        """W."""
        blocks, rows, _ = self.panels.shape
        width = blocks * rows // 4
        wide = self.panels.new_zeros(blocks, rows, width + 1)
        places = torch.where(self.lists < 0, width, self.lists).long()[:, None, :].expand_as(self.panels)
        wide.scatter_(2, places, self.panels)
        return wide[..., :width].unflatten(1, (4, -1)).transpose(0, 1).reshape(4 * width, width)


def pack_steps(stored: SparseFormat) -> StepWeight:
    """Pack a weight [4H, H], on the format's device; H is a multiple of 16."""
    weight = stored.to_dense()
    width = weight.shape[1]
    # [4, blocks, units, H] -> [blocks, 64, H]
    rows = weight.unflatten(0, (4, width // UNITS, UNITS)).transpose(0, 1).flatten(1, 2)
    keeps = (rows != 0).any(1)  # [blocks, H]
    most = CHUNK * max(1, ceil(int(keeps.sum(1).max()) / CHUNK))
    order = (~keeps).to(torch.int8).argsort(dim=1, stable=True)[:, :most]  # kept ones first, ascending
    there = keeps.gather(1, order)
    panels = rows.gather(2, order[:, None, :].expand(-1, rows.shape[1], -1)) * there[:, None, :]
    packed = StepWeight(panels.contiguous(), torch.where(there, order, -1).int().contiguous())
    if stored.device.type == "cuda":  # the kernel reads it before waiting for preceding kernels
        torch.cuda.current_stream(stored.device).synchronize()
    return packed


def step_unsupported_reason(width: int, dtype: torch.dtype, device: torch.device) -> str | None:
    """Why the kernel cannot run the steps of an LSTM with states [B, width], or None."""
    if width % UNITS:
        return f"takes hidden units in blocks of {UNITS}, which do not divide {width}"
    if dtype not in DTYPES:
        return f"takes float16 and bfloat16, not {dtype}"
    if device.type != "cuda" or not operands.TRITON_IS_INSTALLED:
        return "needs a CUDA device and Triton"
    return None


@torch.library.custom_op("sparsefront::lstm_step", mutates_args=())
def lstm_step(
    from_input: Tensor, state: Tensor, c: Tensor, panels: Tensor, lists: Tensor, bias: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """h, h feature-major, and c after a step, computed in float32.

    Args:
        from_input: [B, 4H], contiguous rows: the product of the input, including its bias.
        state: h, feature-major: [H, B], contiguous.
        c: [B, H], contiguous.
        panels, lists: of `StepWeight`.
        bias: [4H] of the state's product, or None.
    Returns:
        [B, H], [H, B] and [B, H], contiguous, in the dtype of c.
    Raises:
        ValueError: incompatible operands.
    """
    rows, width = c.shape
    arguments = {"from_input": (from_input, (rows, 4 * width)), "state": (state, (width, rows))}
    for name, (part, shape) in arguments.items():
        if part.shape != shape or part.dtype != c.dtype or part.device != c.device:
            there = f"{part.dtype} {list(part.shape)} on {part.device}"
            raise ValueError(f"{name} must be {c.dtype} {list(shape)} on {c.device}, not {there}")
    if from_input.stride(1) != 1 or not state.is_contiguous() or not c.is_contiguous():
        raise ValueError("state and c must be contiguous, and each row of from_input")
    if panels.shape[:2] != (width // UNITS, 4 * UNITS) or lists.shape != (len(panels), panels.shape[2]):
        raise ValueError(f"panels and lists must be of {width} units, not {list(panels.shape)} and {list(lists.shape)}")
    if not c.is_cuda or c.numel() == 0 or not operands.TRITON_IS_INSTALLED:
        product = state.t().float() @ StepWeight(panels, lists).dense().float().t()
        product = product if bias is None else product + bias.float()
        h, c = (part.to(from_input.dtype) for part in lstm_gates_reference(from_input.float(), product, c.float()))
        return h, h.t().clone(memory_format=torch.contiguous_format), c
    from sparsefront_kernels.recurrent.triton_steps import launch_lstm_step

    results = c.new_empty(rows, width), c.new_empty(width, rows), c.new_empty(rows, width)
    with torch.cuda.device_of(c):
        launch_lstm_step(from_input, state, c, panels, lists, bias, *results)
    return results


@lstm_step.register_fake
def _(from_input, state, c, panels, lists, bias):
    return c.new_empty(c.shape), c.new_empty(state.shape), c.new_empty(c.shape)


def _product(x: Tensor, packed: StepWeight, bias: Tensor | None = None) -> Tensor:
    """The product of the state alone, as a Linear; steps use `lstm_step`."""
    return torch.nn.functional.linear(x, packed.dense(), bias)


STEP = KernelEntry(name=NAME, family="any", product=_product, pack=pack_steps, requires_cuda=True)
"""Not in the registry: it computes more than a product."""


class SparseGates(SparseLinear):
    """The Linear of an LSTM's state; `step` also computes the gates.

    Args:
        format: W [4H, H] in any family.
        bias: [4H] or None.
    """

    def __init__(self, format: SparseFormat, bias: Tensor | None) -> None:
        super().__init__(replace(STEP, family=format.family), format, bias)

    def step(self, from_input: Tensor, state: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """As `lstm_step`."""
        packed = self._operand
        return lstm_step(from_input, state, c, packed.panels, packed.lists, self.bias)
