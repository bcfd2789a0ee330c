"""No recovery: prune and measure."""

from typing import ClassVar

from sparsefront.declared.settings_class import settings_class
from sparsefront.recovery.base import Recovery, Round, RoundRecord


@settings_class()
class NoRecovery(Recovery):
    """Settings of `recovery=none`: the pruned weights are measured as they are."""

    name: ClassVar[str] = "none"

    def recover(self, round: Round) -> RoundRecord:
        round.masked.set(round.masks)
        return RoundRecord()
