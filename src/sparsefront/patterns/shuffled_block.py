"""Vectors of outputs that need not be neighbors: vector-wise after a permutation of the outputs."""

from typing import ClassVar

import torch
from pydantic import NonNegativeInt, PositiveInt
from torch import Tensor

from sparsefront.declared.settings_class import settings_class
from sparsefront.masks.permutation import Permutation
from sparsefront.patterns.structure.blocks import BlockPattern
from sparsefront.patterns.structure.output_shuffle import shuffled_outputs


@settings_class()
class ShuffledBlock(BlockPattern):
    """Keep the best vectors of v outputs at one input k, the outputs grouped so that more importance is kept.

    The groups are found once, from the first scores and at the final sparsity (the layer's own where the allocation assigns
    one); see `output_shuffle`. The order lives in storage (the tiles of the gathered format name their outputs), so the
    function of the network is unchanged. In a layer where no grouping keeps more than neighbors do, at that sparsity, the
    outputs stay in their own order.

    Args:
        granularity: v, outputs per group; it divides N.
        search_rounds: how often groups exchange outputs at most; 0 leaves them as first formed.
    Source: Huang et al., "Shfl-BW: Accelerating Deep Neural Network Inference with Tensor-Core Aware Weight Pruning", DAC
        2022. The selection of vectors is that of `vector_wise`, and so is the source's allocation.
    """

    granularity: PositiveInt = 32
    search_rounds: NonNegativeInt = 8
    name: ClassVar[str] = "shuffled_block"
    uses_granularity: ClassVar[bool] = True

    @property
    def block(self) -> tuple[int, int]:
        return self.granularity, 1

    @property
    def order_searched_by(self) -> str | None:
        return "pattern"

    def find_permutation(self, importance: Tensor, sparsity: float) -> Permutation | None:
        order = shuffled_outputs(importance, self.granularity, sparsity, self.search_rounds)
        return None if order is None else Permutation(outputs=order)

    def storage(self, shape: tuple[int, int], sparsity: float) -> tuple[str, dict]:
        return "gathered", {"tile": self.granularity, "drop_empty_outputs": False}

    def check(self, mask: Tensor, sparsity: float, permutation: Permutation | None = None) -> None:
        """As for every pattern; without a permutation any order will do that puts equal outputs side by side."""
        if permutation is None and mask.dtype == torch.bool and mask.dim() == 2:
            kinds = torch.unique(mask, dim=0, return_inverse=True)[1]
            permutation = Permutation(outputs=kinds.argsort(stable=True))
        super().check(mask, sparsity, permutation)
