"""Structured pruning of whole outputs or inputs of a layer, or of whole heads and hidden features of a network."""

import math
from typing import ClassVar, Literal

from pydantic import PositiveInt
from torch import Tensor

from sparsefront.errors import InvalidSetting
from sparsefront.patterns.base import Pattern
from sparsefront.patterns.blocks import BlockStep
from sparsefront.settings_class import settings_class


@settings_class()
class Channel(Pattern):
    """Keep the best outputs (rows of W) or inputs (columns) of every layer, or the best heads and hidden features.

    A channel is a block as wide as the layer. With axis=outputs and axis=inputs, channels are not tied across layers: a
    pruned output is zero for every X, but its bias still reaches the next layer. In a convolution an output is a filter,
    and an input is one column of the weight matrix: one kernel position of one input channel.

    With axis=width, channels are tied: a head is pruned in query, key, value and output projection at once, a hidden
    feature in the layer that computes it and the one that reads it (`patterns.ties`). With axis=hidden, features that cross
    blocks are: a feature of the hidden size goes in embeddings, norms, and all layers that compute and read it
    (`patterns.hidden`); norms of the masked network are over the features that are left. The result is a narrower dense
    network, which uses dense kernels.

    Args:
        axis: outputs, inputs, width, hidden, or all: width and hidden.
        aggregate: score of a channel: l2_over_length, rms or mean (l1 / length); see `group_score`. The first two rank
            differently only across layers, because channels of one layer have equal length. A head has many times the
            weights of a feature: with axis=width and one threshold for both, use rms or mean.
        multiple_of: with tied channels, every width that becomes smaller stays a multiple of it; 8 and 64 are fast on GPUs.
    Source: "structured" sparsity of the PyTorch talk (whole rows or columns); filter pruning as in Li et al., "Pruning
        Filters for Efficient ConvNets", 2017, which prunes the smallest filters of each layer: a global threshold may
        remove every channel of a layer and thereby break the network.
    """

    axis: Literal["outputs", "inputs", "width", "hidden", "all"] = "outputs"
    aggregate: Literal["l2_over_length", "rms", "mean"] = "l2_over_length"
    multiple_of: PositiveInt = 1
    name: ClassVar[str] = "channel"

    def __post_init__(self) -> None:
        if self.multiple_of > 1 and not self.tied:
            raise InvalidSetting("multiple_of", self.multiple_of, f"is of widths: 1 with axis={self.axis}")

    @property
    def ranked_in_source(self) -> bool:
        return False

    @property
    def tied(self) -> bool:
        return self.axis in ("width", "hidden", "all")

    @property
    def in_blocks(self) -> bool:
        return self.axis in ("width", "all")

    @property
    def over_norms(self) -> bool:
        return self.axis in ("hidden", "all")

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
        """One tile of all remaining outputs: the smaller dense layer and the indices of its rows and columns in W. Tied layers
        are stored dense.
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
            kept_count = int((mask[index] if self.axis == "outputs" else mask[:, index]).sum())
            raise ValueError(
                f"channel: {self.axis.removesuffix('s')} {index} keeps {kept_count} of its {mask.shape[along]} weights"
            )

    def _block(self, shape: tuple[int, int]) -> tuple[int, int]:
        """(outputs, inputs) of one channel; for tied layers, the larger of a row and a column."""
        if self.tied:
            return (1, shape[1]) if shape[1] > shape[0] else (shape[0], 1)
        return (1, shape[1]) if self.axis == "outputs" else (shape[0], 1)
