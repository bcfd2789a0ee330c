"""Blocks that are 2:4 sparse themselves."""

import math
from dataclasses import replace
from typing import ClassVar

from torch import Tensor

from sparsefront.errors import InvalidSetting
from sparsefront.masks.groups import Boundaries, grid_boundaries
from sparsefront.patterns.base import BlockSize, Step, block_shape, require_divisible
from sparsefront.patterns.blocks import (
    WINDOW,
    BlockPattern,
    BlockStep,
    check_halved_sparsity,
    halved_unsupported_reason,
    in_blocks,
    outer_sparsity,
)
from sparsefront.settings_class import settings_class


@settings_class()
class Block24(BlockPattern):
    """Whole blocks go first, then half of what is left: 2 of every 4 consecutive inputs of an output.

    The densities multiply: blocks go until 2s - 1 of the weights are gone, so that halving the rest makes s. The
    allocation decides on the blocks; the windows leave it nothing.

    Stored as blocks of half the values and their places. On Hopper sparse tensor cores multiply by these, in blocks of multiples
    of 64 x 64; every other kernel multiplies by whole blocks, zeros inside, so that the windows then save no time.

    Args:
        granularity: side of a square block, or "outputs x inputs" such as "4x64"; both sides divide the layer, and the
            inputs are a multiple of 4.
    Source: "Block sparsity + 2:4 sparsity: blocks that are 2:4 sparse themselves" under "Future Work" of the PyTorch
        talk, which names the idea only. Blocks first is our reading: the score of a block then counts all its weights.
    """

    granularity: BlockSize = 64
    name: ClassVar[str] = "block_2_4"
    uses_granularity: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.block[1] % WINDOW.m:
            raise InvalidSetting(
                "granularity", self.granularity, f"inputs in multiples of {WINDOW.m}: blocks hold whole windows"
            )

    @property
    def block(self) -> tuple[int, int]:
        return block_shape(self.granularity)

    @property
    def any_sparsity(self) -> bool:
        return False  # 2:4 takes a half of every layer

    def check_sparsity(self, sparsity: float) -> None:
        check_halved_sparsity(self.name, sparsity)

    def unsupported_reason(self, shape: tuple[int, int], sparsity: float) -> str | None:
        return super().unsupported_reason(shape, sparsity) or halved_unsupported_reason(sparsity)

    def steps(self, sparsity: float, shape: tuple[int, int], final_sparsity: float | None = None) -> tuple[Step, ...]:
        """On the way to a final sparsity blocks go first; once they are fixed the windows tighten by 3:4 to 2:4."""
        outer = outer_sparsity(sparsity if final_sparsity is None else final_sparsity)
        if sparsity <= outer:
            return (BlockStep(sparsity, self.block),)
        window = WINDOW.loosened(1 - (1 - sparsity) / (1 - outer))
        return BlockStep(outer, self.block), BlockStep(sparsity, (1, 1), window)

    def storage(self, shape: tuple[int, int], sparsity: float) -> tuple[str, dict]:
        return "blocked_2_4", {"block": list(self.block)}

    def rounding_unit(self, shape: tuple[int, int]) -> int:
        """A block, halved."""
        return math.prod(self.block) // 2

    def check_structure(self, mask: Tensor, sparsity: float) -> None:
        require_divisible(self, (mask.shape[0], mask.shape[1]), sparsity)
        blocks = in_blocks(mask, self.block)
        alive = blocks.any(dim=3).any(dim=1)[:, None, :, None]
        kept = blocks.unflatten(3, (-1, WINDOW.m)).sum(dim=4)  # [N/b, b, K/b, b/4]
        broken = alive & (kept != WINDOW.n)
        if broken.any():
            row, output, column, index = (int(i) for i in broken.nonzero()[0])
            count = int(kept[row, output, column, index])
            raise ValueError(
                f"block_2_4: window {index} of output {output} in the block at row {row}, column {column} of blocks "
                f"keeps {count} of {WINDOW.m}, not {WINDOW.n}"
            )

    def boundaries(self, mask: Tensor, sparsity: float) -> Boundaries:
        blocks = grid_boundaries((mask.shape[0], mask.shape[1]), self.block)
        return replace(blocks, windows=range(WINDOW.m, mask.shape[1], WINDOW.m))
