"""Training kernels for blocks on compute capability 9.0: weight gradient and packing (`csrc/blocked_training_sm90.cu`)."""

import functools
import itertools
from dataclasses import dataclass

import torch
from torch import Tensor

from sparsefront_kernels.blocked.format import BlockedFormat
from sparsefront_kernels.cuda.launch import launch_kernel, num_sms
from sparsefront_kernels.operands import loadable

LIBRARY = "blocked_training_sm90"
SIDE = 64  # outputs per side, and inputs per box
MOST_BOXES = 4  # per side
ROWS = 32  # of X and dY loaded together
FEWEST_ROWS = 256  # per split


@dataclass(frozen=True, eq=False)
class GradientBoxes:
    """The gradient kernel's view of a weight.

    Args:
        sides: int32 [pairs, 2, 4]: 64 outputs by up to four boxes of 64 inputs: first output, first box, number of boxes,
            and 1 for one side per 64 outputs, which also sums dY.
        boxes: int32 [boxes, 2]: first input, and offset of the box's first 64 × 64 value among all values.
        counts: boxes of each pair.
    """

    sides: Tensor
    boxes: Tensor
    counts: tuple[int, ...]


def boxes_for_gradient(stored: BlockedFormat, device: torch.device) -> GradientBoxes:
    """Args:
    stored: on the CPU, blocks of multiples of 64 both ways.
    """
    (bn, bk), columns, bounds = stored.block, stored.block_columns.tolist(), stored.row_pointers.tolist()
    boxes: list[tuple[int, int]] = []
    sides: list[tuple[int, int, int, int]] = []
    for (row, (start, stop)), part in itertools.product(enumerate(itertools.pairwise(bounds)), range(0, bn, SIDE)):
        first = len(boxes)
        for block, input in itertools.product(range(start, stop), range(0, bk, SIDE)):
            boxes.append((columns[block] * bk + input, (block * bn + part) * bk + input))
        count = len(boxes) - first
        shares = max(1, -(-count // MOST_BOXES))
        ends = [first, *(first + count * (share + 1) // shares for share in range(shares))]
        sides += [(row * bn + part, begin, end - begin, int(begin == first)) for begin, end in itertools.pairwise(ends)]
    sides += [(0, 0, 0, 0)] * (len(sides) % 2)  # pad the last pair
    pairs = torch.tensor(sides, dtype=torch.int32).view(-1, 2, 4)
    counts = pairs[:, :, 2].sum(1)
    order = counts.argsort(descending=True, stable=True)  # longest first
    table = torch.tensor(boxes, dtype=torch.int32).view(-1, 2)
    return GradientBoxes(pairs[order].to(device), table.to(device), tuple(counts[order].tolist()))


# Estimates for an H200, not measured: cycles of a block's start and end, of a pipeline stage per loaded box, and of the
# reduction kernel; bytes that it moves per cycle.
_BLOCK, _BOX, _SUM, _SUM_BYTES = 4000, 91, 4000, 2000


@functools.lru_cache(maxsize=4096)
def splits_for(m: int, counts: tuple[int, ...], num_sms: int) -> int:
    """Number of blocks that share the rows of a pair, by a coarse latency prediction."""

    def cycles(splits: int) -> float:
        mean = sum(counts) / len(counts) + 1.5  # including dY
        waves = -(-len(counts) * splits // num_sms)
        stages = -(-m // (splits * ROWS))
        added = _SUM + 4 * SIDE * SIDE * sum(counts) * (splits + 1) / _SUM_BYTES if splits > 1 else 0.0
        return waves * (_BLOCK + stages * _BOX * mean) + added

    return min(range(1, max(1, m // FEWEST_ROWS) + 1), key=cycles)


def blocked_gradient_sm90(
    dy: Tensor, x: Tensor, packed: GradientBoxes, block: tuple[int, int], blocks: int, *, bias: bool
) -> tuple[Tensor, Tensor]:
    """dYᵀ · X of kept blocks, and the column sums of dY, accumulated in float32.

    Args:
        dy: [M, N], x: [M, K], float16 or bfloat16; copied if rows are not contiguous and 16-byte aligned.
        block, blocks: (bn, bk), and the number of kept blocks.
        bias: sum dY.
    Returns:
        float32 [blocks, bn, bk], and float32 [N], or [0] without `bias`.
    Raises:
        RuntimeError: the launch failed.
    """
    dy, x = loadable(dy), loadable(x)
    m, n, pairs = len(x), dy.shape[1], len(packed.counts)
    splits = splits_for(m, packed.counts, num_sms(x.device))
    gradient = x.new_empty(blocks, *block, dtype=torch.float32)
    of_bias = gradient.new_empty(n if bias else 0)
    if m == 0:
        return gradient.zero_(), of_bias.zero_()  # TMA cannot describe an empty matrix
    sums = None if splits == 1 else gradient.new_empty(splits, gradient.numel() + of_bias.numel())
    launch_kernel(
        "blocked_gradient_sm90",
        x.device,
        (dy, x, sums, gradient, of_bias if bias else None, packed.sides, packed.boxes),
        (dy.stride(0), x.stride(0), gradient.numel()),
        (x.dtype == torch.bfloat16, *(m, n, x.shape[1], block[1]), *(pairs, splits, -(-m // (splits * ROWS)) * ROWS)),
        library=LIBRARY,
    )
    return gradient, of_bias


def packed_panels(values: Tensor, targets: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Pack values into panels [panels, 64, 64] of `BlockedSm90Weight`, for W and for Wᵀ.

    Args:
        values: [blocks, bn, bk], both multiples of 64, any float dtype.
        targets: int32 [panels, 4]: offset of 64 × 64 values, their panels of W and of Wᵀ, 0.
        dtype: float16 or bfloat16, to which values are rounded.
    Raises:
        RuntimeError: the launch failed.
    """
    values = values.float().contiguous()
    panels, transposed = (values.new_empty(len(targets), SIDE, SIDE, dtype=dtype) for _ in range(2))
    if len(targets):
        numbers = (dtype == torch.bfloat16, values.shape[2], len(targets))
        tensors = (values, targets, panels, transposed)
        launch_kernel("blocked_pack_sm90", values.device, tensors, (), numbers, library=LIBRARY)
    return panels, transposed
