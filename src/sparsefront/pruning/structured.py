"""`structured`: what makes the dense network smaller before `pattern` prunes what is left."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field, PositiveInt

from sparsefront.errors import InvalidSetting
from sparsefront.patterns.base import Pattern
from sparsefront.patterns.channel import Channel
from sparsefront.patterns.depth import Depth, Experts
from sparsefront.settings_class import Fraction, settings_class

Amount = Annotated[Fraction, Field(description="of the dense network; 0: nothing")]
Share = Annotated[Fraction, Field(description="of recipe.recovery_steps; 0: one recovery for both")]


@settings_class()
class Structured:
    """Base, and `structured=none`: the dense network is pruned as it is.

    Args:
        sparsity: share of the prunable weights that goes with whole blocks or units, in [0, 1).
        recovery_share: share of the recovery's steps that train the smaller network before `pattern` prunes it; the others
            follow. 0: all of them follow.
    """

    sparsity: Amount = 0.0
    recovery_share: Share = 0.0
    name: ClassVar[str] = "none"

    def __post_init__(self) -> None:
        for key in ("sparsity", "recovery_share"):
            if type(self) is Structured and (value := getattr(self, key)) > 0:
                raise InvalidSetting(key, value, "is 0 with structured=none; depth, width and experts take an amount")

    @property
    def pattern(self) -> Pattern | None:
        """The pattern that does the same to a dense network; None if nothing is removed."""
        return None


@settings_class()
class Shallower(Structured):
    """Remove whole blocks first, as `pattern=depth` does.

    Args:
        sparsity: share of the blocks.
        choose, batches: see `patterns.depth.Depth`.
    """

    sparsity: Amount = 0.5
    choose: Literal["even", "importance"] = "even"
    batches: PositiveInt = 16
    name: ClassVar[str] = "depth"

    @property
    def pattern(self) -> Pattern | None:
        return Depth(self.choose, self.batches) if self.sparsity > 0 else None


@settings_class()
class FewerExperts(Structured):
    """Remove whole experts of a mixture first.

    Args:
        sparsity: share of the experts of every block.
        batches: see `patterns.depth.Experts`.
    """

    sparsity: Amount = 0.25
    batches: PositiveInt = 16
    name: ClassVar[str] = "experts"

    @property
    def pattern(self) -> Pattern | None:
        return Experts(batches=self.batches) if self.sparsity > 0 else None


@settings_class()
class Narrower(Structured):
    """Remove heads and features first, as `pattern=channel pattern.axis=width` does.

    Args:
        sparsity: share of the prunable weights of tied layers.
        units: the pattern's axis: width, hidden or all.
        aggregate, multiple_of: see `patterns.channel.Channel`.
    """

    sparsity: Amount = 0.5
    units: Literal["width", "hidden", "all"] = "width"
    aggregate: Literal["l2_over_length", "rms", "mean"] = "l2_over_length"
    multiple_of: PositiveInt = 1
    name: ClassVar[str] = "width"

    @property
    def pattern(self) -> Pattern | None:
        return Channel(self.units, self.aggregate, self.multiple_of) if self.sparsity > 0 else None
