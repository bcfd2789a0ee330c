"""Whole blocks of the network: a smaller dense network, the rival that every sparse one has."""

import math
from collections.abc import Sequence
from typing import ClassVar, Literal

from pydantic import PositiveInt
from torch import Tensor

from sparsefront.errors import InvalidSetting
from sparsefront.patterns.base import Pattern, Step
from sparsefront.settings_class import settings_class


@settings_class()
class Depth(Pattern):
    """Whole blocks go, such as the layers of a transformer or the residual blocks of a stage; the others keep every weight. The
    network then runs without them (`pruning.prune_blocks`), and what is left is dense.

    A sparsity is a share of the blocks that are alike, rounded to whole ones, half up.

    Args:
        choose: even: the blocks that stay are spread over the network, the first and the last among them, as
            students of distillation are made (Sanh et al., "DistilBERT", 2019, take every other layer; Sajjad et al.,
            "On the Effect of Dropping Layers of Pre-trained Transformer Models", 2020, call it alternate dropping).
            importance: the blocks with the least block influence go, 1 - the cosine similarity of what a block is given and what
            it gives, the mean over calibration data (Men et al., "ShortGPT", 2024, section 3.1). Of a text each token is
            compared, of images all features of a sample. Group `importance`, which scores weights, is not read.
        batches: of training data, for choose=importance.
    """

    choose: Literal["even", "importance"] = "even"
    batches: PositiveInt = 16
    name: ClassVar[str] = "depth"
    takes_blocks: ClassVar[bool] = True

    @property
    def any_sparsity(self) -> bool:
        return False

    def count(self, blocks: int, sparsity: float) -> int:
        """How many of so many blocks go.

        Raises:
            InvalidSetting: none, or all of them; names the nearest sparsity that works.
        """
        found = math.floor(sparsity * blocks + 0.5 + 1e-9)
        if sparsity > 0 and found == 0:
            nearest = math.ceil(500 / blocks) / 1000
            raise InvalidSetting(
                "sparsity", sparsity, f"rounds to none of {blocks} blocks; the nearest that takes one is {nearest:g}"
            )
        if found == blocks:
            nearest = (math.ceil(1000 * (blocks - 0.5) / blocks) - 1) / 1000
            raise InvalidSetting(
                "sparsity", sparsity, f"rounds to all of {blocks} blocks; the nearest that leaves one is {nearest:g}"
            )
        return found

    def dropped(self, blocks: Sequence[str], count: int, influence: Sequence[float] | None = None) -> list[str]:
        """The blocks that go, in the network's order.

        Args:
            blocks: all of them.
            influence: of each block; needed for choose=importance, ties take the later block.
        """
        if self.choose == "even":
            stay = len(blocks) - count
            apart = (len(blocks) - 1) / max(1, stay - 1)
            kept = {math.floor(place * apart + 0.5) for place in range(stay)}
            return [block for place, block in enumerate(blocks) if place not in kept]
        assert influence is not None and len(influence) == len(blocks)
        least = set(sorted(range(len(blocks)), key=lambda place: (influence[place], -place))[:count])
        return [block for place, block in enumerate(blocks) if place in least]

    def steps(self, sparsity: float, shape: tuple[int, int], final_sparsity: float | None = None) -> tuple[Step, ...]:
        raise TypeError("pattern depth divides no layer: whole blocks of the network go")

    def storage(self, shape: tuple[int, int], sparsity: float) -> tuple[str, dict]:
        """The layers that are left are dense."""
        return "dense", {}

    def rounding_unit(self, shape: tuple[int, int]) -> int:
        return math.prod(shape)

    def check_structure(self, mask: Tensor, sparsity: float) -> None:
        if mask.any() and not mask.all():
            raise ValueError(f"depth: {int((~mask).sum())} of {mask.numel()} weights are pruned, not all or none")
