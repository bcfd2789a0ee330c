"""Blocks that are 2:4 sparse inside."""

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
    """Prune whole blocks, then keep 2 of every 4 consecutive inputs of each output in the rest.

    The densities multiply: blocks are pruned to 2s - 1, so that halving the rest gives s. The allocation decides only on
    the blocks.

    Stored as blocks with half the values and their indices. Hopper kernels run them on sparse tensor cores for blocks of
    multiples of 64 x 64; every other kernel multiplies whole blocks with zeros, so the windows save no time there.

    Args:
        granularity: side of a square block, or "outputs x inputs" such as "4x64"; both sides divide the layer, and the
            inputs are a multiple of 4.
    Source: "Block sparsity + 2:4 sparsity: blocks that are 2:4 sparse themselves" under "Future Work" of the PyTorch
        talk, which only names the idea. Pruning blocks first is our choice: a block's score then counts all its weights.
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
        return False  # 2:4 halves every layer

    def check_sparsity(self, sparsity: float) -> None:
        check_halved_sparsity(self.name, sparsity)

    def unsupported_reason(self, shape: tuple[int, int], sparsity: float) -> str | None:
        return super().unsupported_reason(shape, sparsity) or halved_unsupported_reason(sparsity)

    def steps(self, sparsity: float, shape: tuple[int, int], final_sparsity: float | None = None) -> tuple[Step, ...]:
        """During a schedule the blocks are pruned first; once they are fixed, the windows tighten via 3:4 to 2:4."""
        final = sparsity if final_sparsity is None else final_sparsity
        outer, between = outer_sparsity(final), sparsity < final
        if between and sparsity <= outer:
            return (BlockStep(sparsity, self.block),)
        window = WINDOW.before(1 - (1 - sparsity) / (1 - outer)) if between else WINDOW
        return BlockStep(outer, self.block), BlockStep(sparsity, (1, 1), window, between=between)

    def storage(self, shape: tuple[int, int], sparsity: float) -> tuple[str, dict]:
        return "blocked_2_4", {"block": list(self.block)}

    def rounding_unit(self, shape: tuple[int, int]) -> int:
        """Half a block."""
        return math.prod(self.block) // 2

    def check_structure(self, mask: Tensor, sparsity: float) -> None:
        require_divisible(self, (mask.shape[0], mask.shape[1]), sparsity)
        blocks = in_blocks(mask, self.block)
        alive = blocks.any(dim=3).any(dim=1)[:, None, :, None]
        kept_counts = blocks.unflatten(3, (-1, WINDOW.m)).sum(dim=4)  # [N/b, b, K/b, b/4]
        broken = alive & (kept_counts != WINDOW.n)
        if broken.any():
            row, output, column, index = (int(i) for i in broken.nonzero()[0])
            count = int(kept_counts[row, output, column, index])
            raise ValueError(
                f"block_2_4: window {index} of output {output} in the block at row {row}, column {column} of blocks "
                f"keeps {count} of {WINDOW.m}, not {WINDOW.n}"
            )

    def boundaries(self, mask: Tensor, sparsity: float) -> Boundaries:
        blocks = grid_boundaries((mask.shape[0], mask.shape[1]), self.block)
        return replace(blocks, windows=range(WINDOW.m, mask.shape[1], WINDOW.m))
