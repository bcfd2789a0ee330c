"""Gradual pruning: masks tighten during training."""

from typing import Annotated, ClassVar

from pydantic import Field, PositiveInt

from sparsefront.errors import InvalidSetting
from sparsefront.schedule.base import Schedule
from sparsefront.settings_class import Fraction, Share, settings_class


@settings_class()
class Gradual(Schedule):
    """Settings of `schedule=gradual`: the cubic schedule of Zhu and Gupta, "To prune, or not to prune", 2017, section 3:

        s(p) = final + (initial - final) * (1 - (p - begin) / (end - begin))^3,   begin <= p <= end

    with p the fraction of recovery's optimizer steps done; masks do not change after `end`.

    Args:
        initial_sparsity: of the masks before the first update; below the final one.
        begin, end: fractions of the training between which masks change.
        updates: number of evenly spaced changes; the last one reaches the final sparsity.
    """

    initial_sparsity: Fraction = 0.0
    begin: Annotated[Share, Field(description="of the training")] = 0.0
    end: Annotated[Share, Field(description="of the training")] = 0.7
    updates: PositiveInt = 20

    name: ClassVar[str] = "gradual"

    def __post_init__(self) -> None:
        if self.begin >= self.end:
            if self.begin > 0:
                raise InvalidSetting("begin", self.begin, f"must lie before end={self.end}")
            raise InvalidSetting("end", self.end, f"must lie after begin={self.begin}")

    def round_sparsities(self, final: float) -> tuple[float, ...]:
        """One round; its masks tighten during training."""
        return (self.sparsity_at(0.0, final),)

    def sparsity_at(self, progress: float, final: float) -> float:
        """The sparsity after the update at this fraction of the training."""
        if progress >= self.end:
            return final
        remaining = 1 - max(0.0, progress - self.begin) / (self.end - self.begin)
        return final + (self.initial_sparsity - final) * remaining**3

    def check_sparsity(self, sparsity: float) -> None:
        if sparsity > 0 and self.initial_sparsity >= sparsity:
            allowed = f"must be below the final sparsity={sparsity}; schedule=one_shot starts at it"
            raise InvalidSetting("schedule.initial_sparsity", self.initial_sparsity, allowed)

    def updates_of(self, total_steps: int, final: float) -> dict[int, float]:
        """Optimizer step, from 0, before which masks are remade -> their new sparsity; ascending.

        The last update reaches the final sparsity, even if there are few steps; if several updates fall on one step, the
        last one counts.
        """
        fractions = [self.begin + (self.end - self.begin) * (i + 1) / self.updates for i in range(self.updates)]
        fractions[-1] = self.end  # exactly, without rounding error
        return {min(total_steps - 1, round(p * total_steps)): self.sparsity_at(p, final) for p in fractions}
