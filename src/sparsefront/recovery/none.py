"""No recovery: prune and measure."""

from dataclasses import dataclass
from typing import ClassVar

from sparsefront.recovery.base import Recovery, Round, RoundRecord


@dataclass(frozen=True)
class NoRecovery(Recovery):
    """Settings of `recovery=none`: the pruned weights are measured as they are."""

    name: ClassVar[str] = "none"

    def recover(self, round: Round) -> RoundRecord:
        round.masked.set(round.masks)
        return RoundRecord()
