"""Where the groups of a mask begin, for pictures of it."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Boundaries:
    """Lines between the groups of one layer's mask [N, K], in the order in which it obeys its pattern.

    Each number is the first row or column of a group, ascending; the first group's, 0, is left out.

    Args:
        rows: groups along the outputs: blocks, vectors, tiles.
        columns: groups along the inputs: blocks.
        windows: windows of n:m along the inputs, in columns.
    """

    rows: Sequence[int] = ()
    columns: Sequence[int] = ()
    windows: Sequence[int] = ()


def grid_boundaries(shape: tuple[int, int], block: tuple[int, int], m: int | None = None) -> Boundaries:
    """The lines of a fixed grid.

    Args:
        shape: [N, K].
        block: (outputs, inputs) of a group; a side of 1 has no lines, for they would cover the weights.
        m: groups along K in a window; None = there are no windows.
    """
    rows, columns = (range(side, count, side) if side > 1 else () for count, side in zip(shape, block, strict=True))
    windows = () if m is None else range(block[1] * m, shape[1], block[1] * m)
    return Boundaries(rows, columns, windows)
