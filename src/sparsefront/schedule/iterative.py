"""Prune a part, recover, prune more."""

from typing import ClassVar, Literal

from pydantic import PositiveInt

from sparsefront.errors import InvalidSetting
from sparsefront.patterns.base import Pattern
from sparsefront.schedule.base import Schedule
from sparsefront.settings_class import Fraction, OneOrMore, settings_class


@settings_class()
class Iterative(Schedule):
    """Settings of `schedule=iterative`: several rounds, each of which makes new masks from the weights as they then are,
    and lets the recovery work on them (Han et al., "Learning both Weights and
    Connections", 2015). With r rounds to the final sparsity s, round i of 1 ... r reaches

        linear     s * i / r
        geometric  1 - (1 - s)^(i / r)

    The geometric one prunes the same fraction of the surviving weights in every round (Frankle and Carbin, "The Lottery
    Ticket Hypothesis", 2019; Renda, Frankle and Carbin, "Comparing Rewinding and Fine-tuning", 2020, with 20 % a round).

    Args:
        rounds, spacing: how many rounds, and how far apart; not used where levels are given.
        levels: the sparsity of each round, rising to the final one: the authors of the Tile-Wise paper reach 0.75 by way of
            0.4375 and 0.5775, which their script lists per dimension as 25, 35 and 50 %. A first level of 0 trains the
            network unpruned for one round, for scores that are gathered in training. null = from rounds and spacing.
        nested: masks lie within those of the round before, and structure that the final sparsity decides (the outputs that
            tile_wise takes, the window of n:m) is decided from the start. false: every round makes its masks anew, by all
            steps of the pattern to the level of the round. A pruned weight is then zero like any other: by scores that
            grow with the weight it comes back only where its group is worth keeping, as in the public code of the
            Tile-Wise authors, whose every stage prunes outputs and inputs.
    """

    rounds: PositiveInt = 4
    spacing: Literal["linear", "geometric"] = "geometric"
    levels: OneOrMore[Fraction] | None = None
    nested: bool = True

    name: ClassVar[str] = "iterative"

    def __post_init__(self) -> None:
        levels = self.levels or []
        if any(later <= earlier for earlier, later in zip(levels, levels[1:], strict=False)):
            raise InvalidSetting("levels", self.levels, "must rise from round to round")

    @property
    def masks_nest(self) -> bool:
        return self.nested

    def round_sparsities(self, final: float) -> tuple[float, ...]:
        if self.levels is not None:
            return tuple(self.levels)
        parts = [i / self.rounds for i in range(1, self.rounds)]
        way = (final * p if self.spacing == "linear" else 1 - (1 - final) ** p for p in parts)
        return (*way, final)  # the last one as it was given, without rounding

    def sparsity_at(self, progress: float, final: float) -> float:
        """That of the round in progress; all rounds train equally long."""
        levels = self.round_sparsities(final)
        return levels[min(int(progress * len(levels)), len(levels) - 1)]

    def check_sparsity(self, sparsity: float) -> None:
        if self.levels is not None and self.levels[-1] != sparsity:
            raise InvalidSetting("schedule.levels", self.levels, f"must end at sparsity={sparsity}")

    def check_pattern(self, pattern: Pattern) -> None:
        """A pattern that can express some sparsities alone has no masks of its own at every level."""
        if not self.nested and not pattern.any_sparsity:
            allowed = f"is true with pattern {pattern.name}, which can express only some sparsities of a layer"
            raise InvalidSetting("schedule.nested", self.nested, allowed)
