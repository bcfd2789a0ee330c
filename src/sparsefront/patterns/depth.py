"""Remove whole blocks of the network: a shallower dense network, the alternative to every sparse one."""

import math
from collections.abc import Sequence
from typing import ClassVar, Literal

from torch import Tensor

from sparsefront.errors import InvalidSetting
from sparsefront.patterns.base import Pattern, Step
from sparsefront.settings_class import Batches, settings_class


@settings_class()
class Depth(Pattern):
    """Remove whole blocks, such as transformer layers or the residual blocks of a stage; the others keep every weight. The
    shallower network (`pruning.prune_blocks`) is dense.

    The sparsity is the share of identical blocks to remove, rounded to the nearest block, and from the middle to the one
    that leaves more.

    Args:
        choose: even: the remaining blocks are spread over the network, including the first and the last, as students for
            distillation are initialized (Sanh et al., "DistilBERT", 2019, take every other layer; Sajjad et al., "On the
            Effect of Dropping Layers of Pre-trained Transformer Models", 2020, call it alternate dropping).
            importance: the blocks with the least block influence are removed: 1 - the cosine similarity of a block's input and
            output, averaged over calibration data (Men et al., "ShortGPT", 2024, section 3.1), per token of a text and over
            all features of an image. The `importance` group, which scores weights, is not used.
        batches: of training data, for choose=importance.
    """

    choose: Literal["even", "importance"] = "even"
    batches: Batches = 16
    name: ClassVar[str] = "depth"
    unit: ClassVar[str] = "block"
    takes_blocks: ClassVar[bool] = True

    @property
    def any_sparsity(self) -> bool:
        return False

    def count(self, blocks: int, sparsity: float) -> int:
        """Number of blocks to remove out of `blocks`.

        Raises:
            InvalidSetting: it rounds to none or all of them; names the nearest sparsity that works.
        """
        removed = math.ceil(sparsity * blocks - 0.5 - 1e-9)
        if sparsity > 0 and removed == 0:
            nearest = (math.floor(500 / blocks) + 1) / 1000
            raise InvalidSetting(
                "sparsity",
                sparsity,
                f"rounds to none of {blocks} {self.unit}s; the nearest that takes one is {nearest:g}",
            )
        if removed == blocks:
            nearest = math.floor(1000 * (blocks - 0.5) / blocks) / 1000
            raise InvalidSetting(
                "sparsity",
                sparsity,
                f"rounds to all of {blocks} {self.unit}s; the nearest that leaves one is {nearest:g}",
            )
        return removed

    def select(self, blocks: Sequence[str], count: int, influence: Sequence[float] | None = None) -> list[str]:
        """Select the blocks to remove, in network order.

        Args:
            blocks: names of all blocks.
            influence: of each block; required for choose=importance. Ties remove the later block.
        """
        if self.choose == "even":
            stay = len(blocks) - count
            apart = (len(blocks) - 1) / max(1, stay - 1)
            kept_places = {math.floor(place * apart + 0.5) for place in range(stay)}
            return [block for place, block in enumerate(blocks) if place not in kept_places]
        assert influence is not None and len(influence) == len(blocks)
        least = set(sorted(range(len(blocks)), key=lambda place: (influence[place], -place))[:count])
        return [block for place, block in enumerate(blocks) if place in least]

    def steps(self, sparsity: float, shape: tuple[int, int], final_sparsity: float | None = None) -> tuple[Step, ...]:
        raise TypeError(f"pattern {self.name} divides no layer: whole {self.unit}s of the network go")

    def storage(self, shape: tuple[int, int], sparsity: float) -> tuple[str, dict]:
        """The remaining layers are dense."""
        return "dense", {}

    def rounding_unit(self, shape: tuple[int, int]) -> int:
        return math.prod(shape)

    def check_structure(self, mask: Tensor, sparsity: float) -> None:
        if mask.any() and not mask.all():
            raise ValueError(f"{self.name}: {int((~mask).sum())} of {mask.numel()} weights are pruned, not all or none")


@settings_class()
class Experts(Depth):
    """Remove whole experts of a mixture, the same number in every block of the network, and their rows of the router.

    The sparsity is the share of a block's experts. Those with the least routed mass go: the sum over calibration tokens of the
    weights with which the router sends them there, which is 0 for an expert that no token reaches.

    Args:
        choose: always importance.
        batches: of training data.
    Source: the frequency of Lu et al., "Not All Experts are Equal: Efficient Expert Pruning and Skipping for Mixture-of-Experts
        Large Language Models", 2024, section 5.2, weighted by the router.
    """

    choose: Literal["importance"] = "importance"
    batches: Batches = 16
    name: ClassVar[str] = "experts"
    unit: ClassVar[str] = "expert"
