"""Whole outputs or whole inputs of a layer are kept or pruned, or whole heads and hidden features of a network: what is left is
smaller and dense.
"""

import math
from typing import ClassVar, Literal

from torch import Tensor

from sparsefront.errors import InvalidSetting
from sparsefront.patterns.base import Pattern
from sparsefront.patterns.blocks import BlockStep
from sparsefront.settings_class import settings_class


@settings_class()
class Channel(Pattern):
    """Keep the best outputs (rows of W), or the best inputs (columns), of every layer; or the best heads and hidden features.

    A channel is a block as wide as the layer. With outputs and inputs channels are not tied across
    layers: a pruned output gives zero for every X, and its bias, if any, still reaches the next layer. Of a convolution an
    output is a filter, and an input is one column of the weight view: one kernel position of one input channel.

    With `axis=width` they are tied: a head goes in query, key, value and output projection at once, a hidden feature in the
    layer that makes it and the one that reads it (`patterns.width`). What is left is a narrower dense network. It takes
    sparse kernels no more than any dense one.

    Args:
        axis: outputs, inputs or width.
        aggregate: score of a channel: l2_over_length, rms or mean (l1 / length); see `group_score`. Within a layer all
            channels are equally long, so that the first two differ between layers only. A head has many times the weights of
            a hidden feature: with `axis=width` and one threshold over both take rms or mean.
    Source: "structured" sparsity of the PyTorch talk (whole rows or columns); filter pruning as in Li et al., "Pruning
        Filters for Efficient ConvNets", 2017, which prunes the smallest filters of each layer:
        a threshold over the whole network may take every channel of a layer, and with it the network.
    """

    axis: Literal["outputs", "inputs", "width"] = "outputs"
    aggregate: Literal["l2_over_length", "rms", "mean"] = "l2_over_length"
    name: ClassVar[str] = "channel"

    @property
    def ranked_in_source(self) -> bool:
        return False

    @property
    def tied(self) -> bool:
        return self.axis == "width"

    @property
    def outputs_together(self) -> int | None:
        return 1 if self.axis == "outputs" else None

    @property
    def any_sparsity(self) -> bool:
        return not self.tied

    def steps(
        self, sparsity: float, shape: tuple[int, int], final_sparsity: float | None = None
    ) -> tuple[BlockStep, ...]:
        if self.tied:
            raise InvalidSetting("axis", self.axis, "ties layers of a network: no mask is made of one layer alone")
        return (BlockStep(sparsity, self._block(shape), aggregate=self.aggregate),)

    def storage(self, shape: tuple[int, int], sparsity: float) -> tuple[str, dict]:
        """One tile holds all outputs that are left: the smaller dense layer, and which of W's rows and columns it is. Tied layers
        are stored as they are.
        """
        if self.tied:
            return "dense", {}
        return "gathered", {"tile": shape[0], "drop_empty_outputs": True}

    def rounding_unit(self, shape: tuple[int, int]) -> int:
        return math.prod(self._block(shape))

    def check_structure(self, mask: Tensor, sparsity: float) -> None:
        if self.tied:
            rows, columns = mask.any(dim=1), mask.any(dim=0)
            if not mask.equal(rows[:, None] & columns):
                raise ValueError("channel: the weights that are left are not whole rows of whole columns")
            return
        along = 1 if self.axis == "outputs" else 0
        torn = mask.any(dim=along) & ~mask.all(dim=along)
        if torn.any():
            index = int(torn.nonzero()[0])
            kept = int((mask[index] if self.axis == "outputs" else mask[:, index]).sum())
            raise ValueError(
                f"channel: {self.axis.removesuffix('s')} {index} keeps {kept} of its {mask.shape[along]} weights"
            )

    def _block(self, shape: tuple[int, int]) -> tuple[int, int]:
        """(outputs, inputs) of one channel; of tied ones of the larger of both."""
        if self.tied:
            return (1, shape[1]) if shape[1] > shape[0] else (shape[0], 1)
        return (1, shape[1]) if self.axis == "outputs" else (shape[0], 1)
