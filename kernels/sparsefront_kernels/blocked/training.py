"""A trainable block-sparse Linear: all three products and the optimizer work on kept blocks only.

    Y = X · Wᵀ + bias      dX = dY · W      dW = dYᵀ · X of kept blocks

The parameter is the values of `BlockedFormat`, [blocks, bn, bk], and so are its gradient, optimizer state and gradient
exchange. Only `change` changes which blocks are kept.

| | Y and dX | dW |
| --- | --- | --- |
| compute capability 9.0, 16 bits, blocks of multiples of 64 both ways | `blocked_sm90`; dX with panels of Wᵀ | `sm90_training` |
| other GPUs, float32, other blocks | `blocked_triton` | Triton |
| CPU | the reference | the same in PyTorch |
"""

import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Self
from weakref import WeakValueDictionary

import torch
from torch import Tensor, nn

from sparsefront_kernels.blocked import sm90, sm90_training
from sparsefront_kernels.blocked.format import BlockedFormat
from sparsefront_kernels.blocked.reference import blocked_reference
from sparsefront_kernels.blocked.sm90_packing import HALF, K_BLOCK, BlockedSm90Weight, pack_for_blocked_sm90
from sparsefront_kernels.blocked.sm90_training import (
    GradientBoxes,
    blocked_gradient_sm90,
    boxes_for_gradient,
    packed_panels,
)
from sparsefront_kernels.blocked.triton import ENTRY as BLOCKED_TRITON
from sparsefront_kernels.cuda.launch import num_sms, power_of_two_within, supports_pdl
from sparsefront_kernels.device_support import library_unsupported_reason, triton_unsupported_reason
from sparsefront_kernels.epilogue import accumulation_dtype
from sparsefront_kernels.operands import Epilogue, bias_for_kernel, loadable
from sparsefront_kernels.problem import Problem


class TrainableBlockedLinear(nn.Module):
    """A drop-in nn.Linear, [..., K] -> [..., N], that stores and trains only kept blocks.

    Computes in autocast's dtype if enabled, else in the input's. Works in compiled and CUDA graphs.

    Args:
        stored: W, whose values become the parameter `weight`.
        bias: [N] or None; an existing parameter is used directly.
    Attributes:
        weight: [blocks, bn, bk], sorted by block row.
    """

    def __init__(self, stored: BlockedFormat, bias: nn.Parameter | None = None) -> None:
        super().__init__()
        self.out_features, self.in_features = stored.shape
        self.weight = nn.Parameter(stored.values)
        self.bias = bias
        self._keep(stored)

    def _keep(self, stored: BlockedFormat) -> None:
        self._blocks = KeptBlocks(stored)
        # A tensor, so that layers with other blocks share compiled code; an int would be a constant.
        self._handle = torch.tensor(self._blocks.handle, device="cpu")

    @torch.no_grad()
    def change(self, mask: Tensor, *others: Tensor) -> list[Tensor]:
        """Change which blocks are kept; the parameter stays the same object, without a gradient.

        Args:
            mask: bool [N, K], True = keep; constant within each block. Regrown weights start at zero.
            others: tensors shaped like `weight`, such as optimizer state.
        Returns:
            `others`, rearranged like `weight`.
        Raises:
            ValueError: the mask does not keep whole blocks.
        """
        mask, block = mask.to(self.weight.device), list(self._blocks.block)
        dense = [self._blocks.format_of(values).to_dense() for values in (self.weight, *others)]
        stored, *like = [BlockedFormat.from_dense(one, mask, block=block) for one in dense]
        self._keep(stored)
        self.weight.data, self.weight.grad = stored.values, None
        return [one.values for one in like]

    @classmethod
    def from_masked(cls, linear: nn.Linear, mask: Tensor, block: Sequence[int]) -> Self:
        """Convert a masked layer for training in blocks.

        Args:
            mask: bool [N, K], True = keep; constant within each block.
            block: (bn, bk) = outputs × inputs.
        Raises:
            ValueError: the mask does not keep whole blocks.
        """
        mask = mask.to(linear.weight.device)
        stored = BlockedFormat.from_dense(linear.weight.detach(), mask, block=list(block))
        return cls(stored, linear.bias)

    def dense_weight(self) -> Tensor:
        """[N, K], with zeros where W is pruned."""
        return self._blocks.format_of(self.weight.detach()).to_dense()

    def forward(self, input: Tensor) -> Tensor:
        """The argument is named `input`, as in nn.Linear."""
        device = input.device.type
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else input.dtype
        rows = input.reshape(-1, self.in_features).to(dtype)
        y, _ = torch.ops.sparsefront.blocked_training(rows, self.weight, self.bias, self._handle, self.out_features)
        return y.reshape(*input.shape[:-1], self.out_features)

    def largest_error(self, dtype: torch.dtype, device: torch.device, rows: int = 1000) -> float:
        """Largest relative error of Y, dX, dW and the bias gradient against float64, for random operands and values."""
        drawn, ops = torch.Generator(device).manual_seed(0), torch.ops.sparsefront
        x, dy, values = (
            torch.randn(*shape, generator=drawn, device=device).to(dtype)
            for shape in ((rows, self.in_features), (rows, self.out_features), tuple(self.weight.shape))
        )
        y, transposed = ops.blocked_training(x, values.float(), None, self._handle, self.out_features)
        dx = ops.blocked_training_dx(dy, transposed, self._handle, self.in_features)
        dw, db = ops.blocked_training_dw(dy, x, values.float(), self._handle, True)
        w = self._blocks.format_of(values.double()).to_dense()
        keeps = self._blocks.format_of(torch.ones_like(values)).to_dense().bool()
        actual = y, dx, self._blocks.format_of(dw).to_dense(), db
        x, dy = x.double(), dy.double()
        expected = x @ w.t(), dy @ w, (dy.t() @ x) * keeps, dy.sum(dim=0)
        pairs = zip(actual, expected, strict=True)
        return max(float((one - other).norm() / other.norm().clamp(min=1.0)) for one, other in pairs)

    def extra_repr(self) -> str:
        bn, bk = self._blocks.block
        return f"n={self.out_features}, k={self.in_features}, blocks={len(self.weight)} of {bn}x{bk}"


MOST_DEALT_OUT_BEST = 4  # distinct numbers of rows with an optimized schedule; others use a quick one


_HANDLES = itertools.count()
_KEPT: WeakValueDictionary[int, "KeptBlocks"] = WeakValueDictionary()


class KeptBlocks:
    """The set of kept blocks of a weight, and the data kernels need about it per device. Copying returns the same object.

    Args:
        stored: a weight with these blocks; its values are not kept.
    Attributes:
        handle: an integer by which ops find it.
    """

    def __init__(self, stored: BlockedFormat) -> None:
        self.shape, self.block, self.count = stored.shape, stored.block, len(stored.block_columns)
        self._stored = _without_values(stored.to("cpu"))
        self._made: dict[tuple[Any, ...], Any] = {}
        self._numbers_of_rows: set[int] = set()
        self.handle = next(_HANDLES)
        _KEPT[self.handle] = self

    def format_of(self, values: Tensor, transposed: bool = False) -> BlockedFormat:
        """W, or Wᵀ, with these values [blocks, bn, bk]."""
        if transposed:
            values = values[self._order(values.device)].transpose(1, 2).contiguous()
        return replace(self.blocks(transposed, values.device), values=values)

    def blocks(self, transposed: bool, device: torch.device) -> BlockedFormat:
        """W, or Wᵀ, without its values."""

        def make() -> BlockedFormat:
            return _without_values((_transposed(self._stored) if transposed else self._stored).to(device))

        return self._once(make, "blocks", transposed, device)

    def panels(self, transposed: bool, device: torch.device) -> BlockedSm90Weight:
        """W, or Wᵀ, packed for `blocked_sm90`, with uninitialized panels."""

        def make() -> BlockedSm90Weight:
            packed = self._numbered_panels(transposed)
            none = torch.zeros(1, 1, 1, device=device).expand(packed.panels.shape)
            return replace(
                packed, panels=none, **{name: getattr(packed, name).to(device) for name in ("k_blocks", "outputs")}
            )

        return self._once(make, "panels", transposed, device)

    def product_launch(self, transposed: bool, m: int, device: torch.device) -> tuple[sm90.BlockedLaunch, bool]:
        """Launch parameters of the product with `panels` for a number of rows, and whether to use a quick schedule: batches
        with many different lengths would wait for optimized ones.
        """

        def make() -> tuple[sm90.BlockedLaunch, bool]:
            problem = sm90.BlockedProblem.of(self.panels(transposed, device), m)
            self._numbers_of_rows.add(m)
            return sm90.LAUNCHES.launch_for(problem, device), len(self._numbers_of_rows) > MOST_DEALT_OUT_BEST

        return self._once(make, "launch", transposed, m, device)

    def targets(self, device: torch.device) -> Tensor:
        """The targets of `packed_panels`."""

        def make() -> Tensor:
            # the first element of each panel gives its offset, because swizzling does not move it
            of_w, of_transposed = (self._numbered_panels(transposed).panels[:, 0, 0] for transposed in (False, True))
            order, other = of_w.argsort(), of_transposed.argsort()
            places = of_w[order]
            assert torch.equal(places, of_transposed[other])
            return torch.stack([places, order, other, torch.zeros_like(order)], dim=1).to(device, torch.int32)

        return self._once(make, "targets", device)

    def _numbered_panels(self, transposed: bool) -> BlockedSm90Weight:
        """A weight whose values are their own indices, packed."""
        numbers = torch.arange(self.count * self.block[0] * self.block[1])
        return pack_for_blocked_sm90(self.format_of(numbers.view(-1, *self.block), transposed))

    def chunks(self, most: int, device: torch.device) -> Tensor:
        """Runs of at most `most` blocks of one block row, int32 [chunks, 3]: block row, first block, number of blocks."""

        def make() -> Tensor:
            bounds = self._stored.row_pointers.tolist()
            runs = [
                (row, first, min(most, stop - first))
                for row, (start, stop) in enumerate(itertools.pairwise(bounds))
                for first in range(start, stop, most)
            ]
            return torch.tensor(runs, dtype=torch.int32, device=device).view(-1, 3)

        return self._once(make, "chunks", most, device)

    def boxes(self, device: torch.device) -> GradientBoxes:
        """The weight for the gradient kernel of compute capability 9.0."""
        return self._once(lambda: boxes_for_gradient(self._stored, device), "boxes", device)

    def _order(self, device: torch.device) -> Tensor:
        """Index of each block of Wᵀ among those of W, int64 [blocks]."""
        return self._once(lambda: _order_of_transposed(self._stored).to(device), "order", device)

    def _once(self, make: Callable[[], Any], *key: Any) -> Any:
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]

    def __deepcopy__(self, memo: dict[int, Any]) -> "KeptBlocks":
        return self


def _without_values(stored: BlockedFormat) -> BlockedFormat:
    """Replace the values by a broadcast scalar."""
    return replace(stored, values=torch.zeros(1, 1, 1, device=stored.device).expand(stored.values.shape))


def _order_of_transposed(stored: BlockedFormat) -> Tensor:
    columns, block_rows = stored.block_columns.long(), len(stored.row_pointers) - 1
    return (columns * block_rows + stored.block_rows()).argsort()


def _transposed(stored: BlockedFormat) -> BlockedFormat:
    """Wᵀ without values: block columns become block rows."""
    (n, k), (bn, bk) = stored.shape, stored.block
    pointers = torch.zeros(k // bk + 1, dtype=torch.int32)
    pointers[1:] = torch.bincount(stored.block_columns.long(), minlength=k // bk).cumsum(0)
    rows = stored.block_rows()[_order_of_transposed(stored)].to(torch.int32)
    return BlockedFormat((k, n), (bk, bn), stored.values.transpose(1, 2), pointers, rows)


def training_unsupported_reason(dtype: torch.dtype, device: torch.device) -> str | None:
    """Why blocks cannot be trained in this dtype on this device, or None; a CPU uses the reference."""
    if device.type == "cpu":
        return None
    return triton_unsupported_reason(None, Problem(m=1, k=1, n=1, dtype=dtype, device=device))  # type: ignore[arg-type]


def _packed(values: Tensor, dtype: torch.dtype, kept: KeptBlocks) -> tuple[Tensor, Tensor]:
    """Pack the values of W and of Wᵀ for the products, each of the size of `values`."""
    if _runs_on_sm90(dtype, values.device, kept.block):
        return packed_panels(values, kept.targets(values.device), dtype)
    values = values.to(dtype)
    return values, kept.format_of(values, transposed=True).values


def _product(x: Tensor, packed: Tensor, bias: Tensor | None, kept: KeptBlocks, transposed: bool) -> Tensor:
    """[M, K] -> [M, N] with W; [M, N] -> [M, K] with Wᵀ."""
    if _runs_on_sm90(x.dtype, x.device, kept.block):
        return _sm90_product(x, packed, bias, kept, transposed)
    stored = replace(kept.blocks(transposed, x.device), values=packed)
    if x.device.type == "cpu":
        with torch.autocast(
            "cpu", enabled=False
        ):  # autocast would round products of 16-bit operands before they are accumulated
            return blocked_reference(x, stored, bias)
    return BLOCKED_TRITON.run(x, BLOCKED_TRITON.pack(stored), bias)


def _sm90_product(x: Tensor, panels: Tensor, bias: Tensor | None, kept: KeptBlocks, transposed: bool) -> Tensor:
    x = loadable(x)
    m, device = len(x), x.device
    weight = kept.panels(transposed, device)
    y = x.new_empty(m, weight.n)
    if m:
        with torch.cuda.device_of(x):
            launch, quick = kept.product_launch(transposed, m, device)
            sm90.launch_blocked_sm90(
                x,
                y,
                weight,
                Epilogue(bias_for_kernel(bias)),
                m=m,
                launch=launch,
                quick_schedule=quick,
                x_feature_major=False,
                y_feature_major=False,
                panels=panels,
            )
    return y


@functools.cache
def _runs_on_sm90(dtype: torch.dtype, device: torch.device, block: tuple[int, int]) -> bool:
    """Whether the Hopper kernels support W and Wᵀ."""
    if dtype not in (torch.float16, torch.bfloat16) or any(side % HALF for side in block):
        return False
    problem = Problem(m=1, k=1, n=1, dtype=dtype, device=device)
    return all(
        library_unsupported_reason(problem, library) is None for library in (sm90.LIBRARY, sm90_training.LIBRARY)
    )


def weight_gradient_reference(dy: Tensor, x: Tensor, stored: BlockedFormat) -> Tensor:
    """dYᵀ · X of kept blocks in plain PyTorch, block row by block row.

    Args:
        dy: [M, N].
        x: [M, K].
        stored: defines the kept blocks; its values are not read.
    Returns:
        [blocks, bn, bk]; 16-bit operands are accumulated and returned in float32.
    """
    (bn, bk), precision = stored.block, accumulation_dtype(x.dtype)
    blocks_of_x = x.to(precision).unflatten(1, (-1, bk))  # [M, K / bk, bk]
    of_rows = dy.to(precision).unflatten(1, (-1, bn)).unbind(1)
    bounds = stored.row_pointers.tolist()
    products = [
        (of_row.t() @ blocks_of_x.index_select(1, stored.block_columns[start:stop]).flatten(1))
        .reshape(bn, stop - start, bk)
        .transpose(0, 1)
        for of_row, (start, stop) in zip(of_rows, itertools.pairwise(bounds), strict=True)
    ]
    return torch.cat(products)


def triton_weight_gradient(dy: Tensor, x: Tensor, kept: KeptBlocks) -> Tensor:
    """The same with the Triton kernel, on a GPU or in the interpreter, in float32."""
    from sparsefront_kernels.blocked.triton_training import launch_weight_gradient

    stored = kept.blocks(False, x.device)
    launch = gradient_launch(len(x), x.element_size(), kept, x.device)
    gradient = x.new_empty(launch.splits, kept.count, *kept.block, dtype=torch.float32)
    if gradient.numel():
        chunks = kept.chunks(launch.side_by_side, x.device)
        dy, x = (rows if rows.stride(1) == 1 else rows.contiguous() for rows in (dy, x))
        launch_weight_gradient(dy, x, gradient, chunks=chunks, block_columns=stored.block_columns, launch=launch)
    return gradient[0] if launch.splits == 1 else gradient.sum(dim=0)


WIDEST = 256  # inputs per program
PROGRAMS = 2  # per SM
FEWEST_ROWS = 512  # per split
SHARED_BYTES, SHARED_BYTES_OF_SM90 = (
    101_376,
    232_448,
)  # of a block; the first on compute capability 8.9, where it is least


def gradient_launch(m: int, itemsize: int, kept: KeptBlocks, device: torch.device) -> Any:
    """Use wide programs, which read dY less often, and enough splits of the rows to fill the GPU."""
    from sparsefront_kernels.blocked.triton_training import GradientLaunch

    height, width = (power_of_two_within(side, lowest=16, highest=128) for side in kept.block)
    side_by_side = WIDEST // width
    chunks = max(1, len(kept.chunks(side_by_side, device)))
    splits = max(1, min(PROGRAMS * num_sms(device) // chunks, m // FEWEST_ROWS))
    block_m = 64 if itemsize == 2 else 16  # float32 uses the CUDA cores
    bytes_of_stage = itemsize * block_m * (height + side_by_side * width)
    shared = SHARED_BYTES_OF_SM90 if supports_pdl(device) else SHARED_BYTES
    return GradientLaunch(
        side_by_side,
        block_m,
        splits,
        num_warps=8 if height * WIDEST > 64 * 256 else 4,
        num_stages=max(2, min(4, shared // (bytes_of_stage * (2 if shared > SHARED_BYTES else 1)))),
    )


# Ops, each a single node in eager, compiled and CUDA graphs. They take a handle for the blocks: see `TrainableBlockedLinear`.
# `torch.library.custom_op` would add 22 us of Python per call, which matters for small networks.

_LIBRARY = torch.library.Library("sparsefront", "FRAGMENT")


def _kept(handle: Tensor) -> KeptBlocks:
    return _KEPT[int(handle)]


def _blocked_training(x: Tensor, values: Tensor, bias: Tensor | None, handle: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """Differentiable Y = X · Wᵀ + bias in x's dtype; also returns packed Wᵀ for the backward pass.

    Args:
        x: [M, K].
        values: [blocks, bn, bk], any float dtype, rounded to x's.
        bias: [N], any float dtype, or None.
        handle: int64, of `KeptBlocks`.
    """
    kept_blocks = _kept(handle)
    packed, transposed = _packed(values, x.dtype, kept_blocks)
    return _product(x, packed, bias, kept_blocks, transposed=False), transposed.flatten()


def _blocked_training_dx(dy: Tensor, transposed: Tensor, handle: Tensor, k: int) -> Tensor:
    kept_blocks = _kept(handle)
    on_sm90 = _runs_on_sm90(dy.dtype, dy.device, kept_blocks.block)
    shape = (-1, HALF, K_BLOCK) if on_sm90 else (-1, *reversed(kept_blocks.block))
    return _product(dy, transposed.view(shape), None, kept_blocks, transposed=True)


def _blocked_training_dw(dy: Tensor, x: Tensor, values: Tensor, handle: Tensor, bias: bool) -> tuple[Tensor, Tensor]:
    """The gradients of kept blocks and, on request, of the bias."""
    kept_blocks = _kept(handle)
    if _runs_on_sm90(x.dtype, x.device, kept_blocks.block):
        gradient, of_bias = blocked_gradient_sm90(
            dy, x, kept_blocks.boxes(x.device), kept_blocks.block, kept_blocks.count, bias=bias
        )
        return gradient.to(values.dtype), of_bias
    if x.device.type == "cpu":
        with torch.autocast("cpu", enabled=False):
            gradient = weight_gradient_reference(dy, x, kept_blocks.blocks(False, x.device))
    else:
        with torch.cuda.device_of(x):
            gradient = triton_weight_gradient(dy, x, kept_blocks)
    return gradient.to(values.dtype), dy[:, : dy.shape[1] * bias].sum(dim=0, dtype=accumulation_dtype(dy.dtype))


def _fake(x: Tensor, values: Tensor, bias: Tensor | None, handle: Tensor, n: int) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape[0], n), x.new_empty(values.numel())


def _fake_dx(dy: Tensor, transposed: Tensor, handle: Tensor, k: int) -> Tensor:
    return dy.new_empty(dy.shape[0], k)


def _fake_dw(dy: Tensor, x: Tensor, values: Tensor, handle: Tensor, bias: bool) -> tuple[Tensor, Tensor]:
    gradient = torch.empty_like(values, memory_format=torch.contiguous_format)
    return gradient, dy.new_empty(dy.shape[1] * bias, dtype=accumulation_dtype(dy.dtype))


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    x, values, bias, handle, _ = inputs
    ctx.save_for_backward(x, values, output[1], handle)
    ctx.set_materialize_grads(False)
    ctx.bias_dtype = None if bias is None else bias.dtype


def _backward(ctx: Any, dy: Tensor | None, _: Tensor | None) -> tuple[Tensor | None, ...]:
    if dy is None:
        return None, None, None, None, None
    x, values, transposed, handle = ctx.saved_tensors
    wants_x, wants_values, wants_bias, *_ = ctx.needs_input_grad
    ops, dx, dw, db = torch.ops.sparsefront, None, None, None
    if wants_x:
        dx = ops.blocked_training_dx(dy, transposed, handle, x.shape[1])
    if wants_values:
        dw, db = ops.blocked_training_dw(dy, x, values, handle, wants_bias)
    elif wants_bias:
        db = dy.sum(dim=0, dtype=accumulation_dtype(dy.dtype))
    return dx, dw, db.to(ctx.bias_dtype) if wants_bias else None, None, None


for _name, _schema, _run, _of_fakes in (
    (
        "",
        "(Tensor x, Tensor values, Tensor? bias, Tensor handle, SymInt n) -> (Tensor, Tensor)",
        _blocked_training,
        _fake,
    ),
    ("_dx", "(Tensor dy, Tensor transposed, Tensor handle, SymInt k) -> Tensor", _blocked_training_dx, _fake_dx),
    (
        "_dw",
        "(Tensor dy, Tensor x, Tensor values, Tensor handle, bool bias) -> (Tensor, Tensor)",
        _blocked_training_dw,
        _fake_dw,
    ),
):
    _LIBRARY.define(f"blocked_training{_name}{_schema}", tags=torch.Tag.pt2_compliant_tag)
    _LIBRARY.impl(f"blocked_training{_name}", _run, "CompositeExplicitAutograd")
    torch.library.register_fake(f"sparsefront::blocked_training{_name}", _of_fakes, lib=_LIBRARY)
torch.library.register_autograd("sparsefront::blocked_training", _backward, setup_context=_setup_context, lib=_LIBRARY)
