"""What every schedule provides: in how many rounds masks are made, and when they change within one."""

import math
from abc import ABC, abstractmethod
from itertools import pairwise
from typing import ClassVar

from sparsefront.errors import InvalidSetting
from sparsefront.patterns.base import Pattern


class Schedule(ABC):
    """Decides when masks change; subclasses are frozen dataclasses, fields as in their YAML.

    A round makes masks from the weights as they are and hands them to the recovery. A schedule may further change the
    masks of a round while the recovery trains.
    """

    name: ClassVar[str]

    @property
    def masks_nest(self) -> bool:
        """Whether every mask lies within the one before and has the structure of the final sparsity. Otherwise each is made as
        if it were the last: by all steps of the pattern to its own sparsity, and what was pruned may come back.
        """
        return True

    @abstractmethod
    def round_sparsities(self, final: float) -> tuple[float, ...]:
        """The sparsity of the masks that each round starts with; never falling, and at most `final`. The last is `final` where no
        mask changes in training.
        """

    @abstractmethod
    def sparsity_at(self, progress: float, final: float) -> float:
        """The sparsity at this fraction, in [0, 1], of all training after pruning; at 0 it is that of the first masks."""

    def updates_of(self, total_steps: int, final: float) -> dict[int, float]:
        """Optimizer step of a round, counted from 0, before which masks are made again -> the sparsity they then have.

        Ascending, up to `final`; empty where the masks of a round stay as they are.
        """
        return {}

    @property
    def in_training(self) -> bool:
        """Whether masks change while a round trains: it defines `updates_of`."""
        return type(self).updates_of is not Schedule.updates_of

    def check_rounds(self, final: float) -> None:
        """Require what `round_sparsities` promises, which a user's own may break.

        Raises:
            InvalidSetting: no round, levels that fall or leave [0, `final`], or a last one below it where no mask changes later.
        """
        levels = self.round_sparsities(final)
        if not levels or any(later < earlier - 1e-9 for earlier, later in pairwise((0.0, *levels, final))):
            allowed = f"has rounds at {list(levels)}: must be one or more, from 0 to sparsity={final}, that never fall"
            raise InvalidSetting("schedule", self.name, allowed)
        if not self.in_training:
            self.check_end(levels[-1], final)

    def check_end(self, reached: float, final: float) -> None:
        """Require the sparsity that is left at the end to be the final one.

        Raises:
            InvalidSetting: it is another one.
        """
        if not math.isclose(reached, final, abs_tol=1e-9):
            raise InvalidSetting("schedule", self.name, f"ends at {reached}: must end at sparsity={final}")

    def check_sparsity(self, sparsity: float) -> None:
        """Require a final sparsity that the settings lead to.

        Raises:
            InvalidSetting: with its key written from the root.
        """

    def check_blocks(self, pattern: Pattern, sparsity: float) -> None:
        """Require, of a pattern that takes whole blocks out of the network, that it does so once.

        Raises:
            InvalidSetting: masks are made again on the way to the final `sparsity`.
        """
        if pattern.takes_blocks and (self.in_training or self.round_sparsities(sparsity) != (sparsity,)):
            allowed = f"makes masks again, and pattern={pattern.name} takes its blocks out once: schedule=one_shot"
            raise InvalidSetting("schedule", self.name, allowed)

    def check_pattern(self, pattern: Pattern) -> None:
        """Require a pattern whose masks can be made as the settings say.

        Raises:
            InvalidSetting: with its key written from the root.
        """
