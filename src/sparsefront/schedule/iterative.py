"""Iterative pruning: prune and recover in several rounds."""

from typing import ClassVar, Literal

from pydantic import PositiveInt

from sparsefront.errors import InvalidSetting
from sparsefront.patterns.base import Pattern
from sparsefront.schedule.base import Schedule
from sparsefront.settings_class import Fraction, OneOrMore, settings_class


@settings_class()
class Iterative(Schedule):
    """Settings of `schedule=iterative`: several rounds, each of which makes new masks from the current weights and lets the
    recovery work on them (Han et al., "Learning both Weights and Connections", 2015). With r rounds to the final sparsity s,
    round i of 1 ... r reaches

        linear     s * i / r
        geometric  1 - (1 - s)^(i / r)

    Geometric spacing prunes the same fraction of the surviving weights in every round (Frankle and Carbin, "The Lottery
    Ticket Hypothesis", 2019; Renda, Frankle and Carbin, "Comparing Rewinding and Fine-tuning", 2020, with 20 % per round).

    Args:
        rounds, spacing: number of rounds and their spacing; not used with `levels`.
        levels: the sparsity of each round, rising to the final one: the authors of the Tile-Wise paper reach 0.75 via
            0.4375 and 0.5775, listed per dimension as 25, 35 and 50 % in their script. A first level of 0 trains the
            unpruned network for one round, for scores accumulated in training. null = from rounds and spacing.
        nested: masks lie within those of the previous round, and structure that depends on the final sparsity (the
            outputs that tile_wise prunes, the window of n:m) is fixed from the start. false: every round makes its masks
            from scratch for its own level. A pruned weight then scores as zero: with scores that grow with the weight, it
            comes back only if its group is worth keeping, as in the public code of the Tile-Wise authors, whose every
            stage prunes outputs and inputs.
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
        return (*way, final)  # the last one exactly, without rounding

    def sparsity_at(self, progress: float, final: float) -> float:
        """The sparsity of the current round; all rounds train equally long."""
        levels = self.round_sparsities(final)
        return levels[min(int(progress * len(levels)), len(levels) - 1)]

    def check_sparsity(self, sparsity: float) -> None:
        if self.levels is not None and self.levels[-1] != sparsity:
            raise InvalidSetting("schedule.levels", self.levels, f"must end at sparsity={sparsity}")

    def check_pattern(self, pattern: Pattern) -> None:
        """Patterns that can express only some sparsities have no masks for every level."""
        if not self.nested and not pattern.any_sparsity:
            allowed = f"is true with pattern {pattern.name}, which can express only some sparsities of a layer"
            raise InvalidSetting("schedule.nested", self.nested, allowed)
