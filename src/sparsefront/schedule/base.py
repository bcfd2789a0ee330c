"""The schedule interface: the number of rounds, and when masks change within one."""

import math
from abc import ABC, abstractmethod
from itertools import pairwise
from typing import ClassVar

from sparsefront.errors import InvalidSetting
from sparsefront.patterns.base import Pattern


class Schedule(ABC):
    """Decides when masks change. Subclasses are frozen dataclasses whose fields are the keys of their YAML.

    A round makes masks from the current weights and hands them to the recovery. A schedule may also change the masks of a
    round while the recovery trains.
    """

    name: ClassVar[str]

    @property
    def masks_nest(self) -> bool:
        """Whether every mask lies within the previous one and has the structure of the final sparsity. If not, each mask is made
        from scratch for its own sparsity, and pruned weights may come back.
        """
        return True

    @abstractmethod
    def round_sparsities(self, final: float) -> tuple[float, ...]:
        """The sparsity of each round's first masks: non-decreasing and at most `final`. The last is `final` if no masks change
        during training.
        """

    @abstractmethod
    def sparsity_at(self, progress: float, final: float) -> float:
        """The sparsity at this fraction, in [0, 1], of all training after pruning; at 0, that of the first masks."""

    def updates_of(self, total_steps: int, final: float) -> dict[int, float]:
        """Optimizer step of a round, from 0, before which masks are remade -> their new sparsity.

        Ascending, up to `final`; empty if the masks of a round do not change.
        """
        return {}

    @property
    def in_training(self) -> bool:
        """Whether masks change during a round's training, that is, whether it defines `updates_of`."""
        return type(self).updates_of is not Schedule.updates_of

    def check_rounds(self, final: float) -> None:
        """Check what `round_sparsities` promises; user classes may break it.

        Raises:
            InvalidSetting: no rounds, levels that decrease or leave [0, `final`], or a last one below it although no mask
                changes later.
        """
        levels = self.round_sparsities(final)
        if not levels or any(later < earlier - 1e-9 for earlier, later in pairwise((0.0, *levels, final))):
            allowed = f"has rounds at {list(levels)}: must be one or more, from 0 to sparsity={final}, that never fall"
            raise InvalidSetting("schedule", self.name, allowed)
        if not self.in_training:
            self.check_end(levels[-1], final)

    def check_end(self, reached: float, final: float) -> None:
        """Check that training ended at the final sparsity.

        Raises:
            InvalidSetting: it did not.
        """
        if not math.isclose(reached, final, abs_tol=1e-9):
            raise InvalidSetting("schedule", self.name, f"ends at {reached}: must end at sparsity={final}")

    def check_sparsity(self, sparsity: float) -> None:
        """Check that the settings lead to this final sparsity.

        Raises:
            InvalidSetting: names the full key.
        """

    def check_blocks(self, pattern: Pattern, sparsity: float) -> None:
        """Check that a pattern that removes whole blocks does so only once.

        Raises:
            InvalidSetting: masks are remade on the way to the final `sparsity`.
        """
        if pattern.takes_blocks and (self.in_training or self.round_sparsities(sparsity) != (sparsity,)):
            allowed = f"makes masks again, and pattern={pattern.name} takes its blocks out once: schedule=one_shot"
            raise InvalidSetting("schedule", self.name, allowed)

    def check_pattern(self, pattern: Pattern) -> None:
        """Check that the pattern's masks can be made as the settings require.

        Raises:
            InvalidSetting: names the full key.
        """
