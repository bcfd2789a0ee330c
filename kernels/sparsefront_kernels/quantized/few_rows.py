"""`gathered_int8_few_rows` and `dense_int8_few_rows`: X in 16 bits with int8 weights, for as few rows as text generation has.

Few rows are bound by the bytes of the weight, which int8 halves; X is not quantized, so that its product costs no more than
rounding the weight does.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from sparsefront_kernels.custom_op import custom_op
from sparsefront_kernels.dense.format import DenseFormat
from sparsefront_kernels.device_support import triton_unsupported_reason
from sparsefront_kernels.format import SparseFormat
from sparsefront_kernels.gathered.format import GatheredFormat
from sparsefront_kernels.kernel_entry import KernelEntry
from sparsefront_kernels.operands import check_epilogue, check_operands
from sparsefront_kernels.problem import Problem
from sparsefront_kernels.quantized.quantize import Quantized, quantize_weight

MOST_ROWS = 64  # above, products that quantize X too are faster
ALIGNED = 16  # bytes of one copy: kept inputs of a tile are padded to a multiple
WIDTH = 32  # outputs of a tile are padded to a multiple
NARROWEST = 16  # tiles: narrower ones would be padding for the most part


@dataclass(frozen=True, eq=False)
class FewRowsWeight:
    """W in int8 with a scale per output.

    Args:
        n, k: outputs and inputs of the weight.
        values: int8, the panels of all tiles, each [width, kept inputs], zeros where padded.
        inputs: int32, kept inputs of all tiles, -1 where padded; empty where the only tile keeps every input.
        offsets: int64 [tiles + 1]; tile t has the inputs offsets[t] to offsets[t + 1].
        outputs: int32 [tiles, width], -1 where padded; each output of the weight is there once.
        scales: float32 [N].
        dtype: of the weight before quantization.
    """

    n: int
    k: int
    values: Tensor
    inputs: Tensor
    offsets: Tensor
    outputs: Tensor
    scales: Tensor
    dtype: torch.dtype


def pack_few_rows(stored: SparseFormat) -> FewRowsWeight:
    """Quantize and pack a gathered or dense weight, on its device; outputs that no tile stores are a tile without inputs."""
    n, k = stored.shape
    values, scales = quantize_weight(stored.to_dense(), "int8")
    if isinstance(stored, GatheredFormat):
        width, nothing = -(-min(stored.tile, n) // WIDTH) * WIDTH, stored.kept_inputs[:0].long()
        lists = [keep.nonzero().flatten() for keep in stored.keeps]
        tiles = list(zip(stored.output_index.long().split(stored.tile), lists))
        dropped = stored.dropped_outputs.long()
        tiles += [(rows, nothing) for rows in dropped.split(width)] if len(dropped) else []
    else:
        every = torch.arange(k, device=stored.device)
        tiles, width = [(torch.arange(n, device=stored.device), every)], -(-n // WIDTH) * WIDTH
    panels, lists = [], []
    for rows, indices in tiles:
        missing = -len(indices) % ALIGNED if len(indices) else ALIGNED  # so that only a whole weight has no lists
        panels.append(pad(values[rows][:, indices], (0, missing, 0, width - len(rows))).flatten())
        lists.append(pad(indices.int(), (0, missing), value=-1))
    outputs = torch.stack([pad(rows.int(), (0, width - len(rows)), value=-1) for rows, _ in tiles])
    counts = torch.tensor([0, *map(len, lists)], device=stored.device)
    is_whole = isinstance(stored, DenseFormat) and k % ALIGNED == 0
    inputs = outputs.new_empty(0) if is_whole else torch.cat(lists)
    return FewRowsWeight(n, k, torch.cat(panels), inputs, counts.cumsum(0), outputs, scales.flatten(), stored.dtype)


def dense_weight(packed: FewRowsWeight) -> Tensor:
    """W [N, K] after quantization, in float32."""
    weight = packed.scales.new_zeros(packed.n, packed.k)
    width, bounds = packed.outputs.shape[1], packed.offsets.tolist()
    for rows, start, end in zip(packed.outputs, bounds[:-1], bounds[1:], strict=True):
        panel = packed.values[start * width : end * width].view(width, end - start)[rows >= 0].float()
        indices = (
            packed.inputs[start:end].long() if packed.inputs.numel() else torch.arange(packed.k, device=rows.device)
        )
        rows = rows[rows >= 0].long()
        weight[rows[:, None], indices[indices >= 0]] = panel[:, : int((indices >= 0).sum())] * packed.scales[rows, None]
    return weight


@custom_op("int8_few_rows")
def int8_few_rows(
    x: Tensor,
    values: Tensor,
    inputs: Tensor,
    offsets: Tensor,
    outputs: Tensor,
    scales: Tensor,
    bias: Tensor | None,
    residual: Tensor | None,
    activation: str,
) -> Tensor:
    """The product of `few_rows_product` with the fields of its weight."""
    from sparsefront_kernels.quantized.triton_few_rows import launch_few_rows

    y = x.new_empty(len(x), len(scales))
    if y.numel():
        x = x if x.stride(1) == 1 else x.contiguous()
        residual = None if residual is None else residual.contiguous()
        with torch.cuda.device_of(x):
            launch_few_rows(x, values, inputs, offsets, outputs, scales, bias, residual, activation, y)
    return y


@int8_few_rows.register_fake
def _(x, values, inputs, offsets, outputs, scales, bias, residual, activation):
    return x.new_empty(x.shape[0], scales.shape[0])


def few_rows_product(
    x: Tensor | Quantized,
    packed: FewRowsWeight,
    bias: Tensor | None = None,
    *,
    activation: str = "none",
    residual: Tensor | None = None,
) -> Tensor:
    """Compute Y = activation(X · Wᵀ + bias) + residual, accumulated in float32 and rounded once.

    Args:
        x: [M, K] in the weight's dtype before quantization.
        packed: the weight.
        bias: [N], any float dtype of at most 32 bits, or None.
        residual: [M, N] in x's dtype, or None.
    Returns:
        [M, N] in x's dtype.
    Raises:
        ValueError: incompatible operands.
    """
    if isinstance(x, Quantized):
        raise ValueError("multiplies X in 16 bits, not quantized")
    check_operands(x, packed.scales.new_empty(0, dtype=packed.dtype), bias, k=packed.k, n=packed.n)
    check_epilogue(x.new_empty(1, 1).expand(len(x), packed.n), activation, residual)
    weight = (packed.values, packed.inputs, packed.offsets, packed.outputs, packed.scales)
    return int8_few_rows(x, *weight, bias, residual, activation)


def _multiplied(x: Tensor | Quantized, packed: FewRowsWeight) -> tuple[Tensor, Tensor]:
    assert isinstance(x, Tensor)  # `takes_scales` is empty
    return x.float(), dense_weight(packed)


def _unsupported(stored: SparseFormat, problem: Problem) -> str | None:
    if problem.m > MOST_ROWS:
        return f"takes up to {MOST_ROWS} rows of X, not {problem.m}"
    if problem.dtype not in (torch.float16, torch.bfloat16):
        return f"takes float16 or bfloat16, not {problem.dtype}"
    if isinstance(stored, GatheredFormat) and stored.tile < NARROWEST:
        return f"takes tiles of {NARROWEST} outputs or more, not {stored.tile}"
    return triton_unsupported_reason(stored, problem)


def few_rows_entry(family: str) -> KernelEntry:
    """The kernel of a family, "gathered" or "dense"."""
    return KernelEntry(
        name=f"{family}_int8_few_rows",
        family=family,
        product=few_rows_product,
        unsupported=_unsupported,
        pack=pack_few_rows,
        requires_cuda=True,
        fuses_epilogue=True,
        precision="int8",
        multiplied=_multiplied,
    )
