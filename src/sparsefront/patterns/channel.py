"""Whole outputs or whole inputs of a layer are kept or pruned: what is left is a smaller dense layer."""

import math
from typing import ClassVar, Literal

from torch import Tensor

from sparsefront.patterns.base import Pattern
from sparsefront.patterns.blocks import BlockStep
from sparsefront.settings_class import settings_class


@settings_class()
class Channel(Pattern):
    """Keep the best outputs (rows of W), or the best inputs (columns), of every layer.

    A channel is a block as wide as the layer. Channels are not tied across
    layers: a pruned output gives zero for every X, and its bias, if any, still reaches the next layer. Of a convolution an
    output is a filter, and an input is one column of the weight view: one kernel position of one input channel.

    Args:
        axis: outputs or inputs.
        aggregate: score of a channel: l2_over_length, rms or mean (l1 / length); see `group_score`. Within a layer all
            channels are equally long, so that the first two differ between layers only.
    Source: "structured" sparsity of the PyTorch talk (whole rows or columns); filter pruning as in Li et al., "Pruning
        Filters for Efficient ConvNets", 2017, which prunes the smallest filters of each layer:
        a threshold over the whole network may take every channel of a layer, and with it the network.
    """

    axis: Literal["outputs", "inputs"] = "outputs"
    aggregate: Literal["l2_over_length", "rms", "mean"] = "l2_over_length"
    name: ClassVar[str] = "channel"

    @property
    def ranked_in_source(self) -> bool:
        return False

    def steps(
        self, sparsity: float, shape: tuple[int, int], final_sparsity: float | None = None
    ) -> tuple[BlockStep, ...]:
        return (BlockStep(sparsity, self._block(shape), aggregate=self.aggregate),)

    def storage(self, shape: tuple[int, int], sparsity: float) -> tuple[str, dict]:
        """One tile holds all outputs that are left: the smaller dense layer, and which of W's rows and columns it is."""
        return "gathered", {"tile": shape[0], "drop_empty_outputs": True}

    def rounding_unit(self, shape: tuple[int, int]) -> int:
        return math.prod(self._block(shape))

    def check_structure(self, mask: Tensor, sparsity: float) -> None:
        along = 1 if self.axis == "outputs" else 0
        torn = mask.any(dim=along) & ~mask.all(dim=along)
        if torn.any():
            index = int(torn.nonzero()[0])
            kept = int((mask[index] if self.axis == "outputs" else mask[:, index]).sum())
            raise ValueError(
                f"channel: {self.axis.removesuffix('s')} {index} keeps {kept} of its {mask.shape[along]} weights"
            )

    def _block(self, shape: tuple[int, int]) -> tuple[int, int]:
        """(outputs, inputs) of one channel."""
        return (1, shape[1]) if self.axis == "outputs" else (shape[0], 1)
