"""Rectangular blocks of weights are kept or pruned together."""

from typing import ClassVar

from sparsefront.patterns.base import BlockSize, WindowSize, block_shape
from sparsefront.patterns.blocks import Distribution, FreeOrBalanced, VectorScore
from sparsefront.settings_class import settings_class


@settings_class()
class BlockWise(FreeOrBalanced):
    """Keep the best blocks of a fixed grid.

    Args:
        granularity: side of a square block, or "outputs x inputs" such as "4x64"; both sides divide the layer.
        distribution: free, or balanced = n of every m blocks along K in each row of blocks (BW-N:M).
        m: window of the balanced distribution, in blocks; None chooses it as n_m does.
        aggregate: score of a block: l2, the norm of its importance, or l1, the sum. The sources of the balanced
            distribution do not say which; the Tile-Wise authors' code uses l2.
    Source: Gray et al., "GPU Kernels for Block-Sparse Weights"; balanced: Lin et al., nmSPARSE. free: the Tile-Wise
        authors' public code ranks the blocks of the whole network (allocation=global_threshold).
    """

    granularity: BlockSize = 64
    distribution: Distribution = "free"
    m: WindowSize = None
    aggregate: VectorScore = "l2"
    name: ClassVar[str] = "block_wise"
    uses_granularity: ClassVar[bool] = True
    trains_sparse: ClassVar[bool] = True

    @property
    def block(self) -> tuple[int, int]:
        return block_shape(self.granularity)

    def group_text(self, side: int) -> str:
        return super().group_text(side) if len(set(self.block)) == 1 else f"{side} (granularity {self.granularity})"

    def storage(self, shape: tuple[int, int], sparsity: float) -> tuple[str, dict]:
        return "blocked", {"block": list(self.block)}
