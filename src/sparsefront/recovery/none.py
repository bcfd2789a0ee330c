"""No recovery: prune and measure."""

from typing import ClassVar

from sparsefront.progress import working_time
from sparsefront.recovery.base import Recovery, Round, RoundRecord, retake_batch_norm
from sparsefront.settings_class import Batches, settings_class


@settings_class()
class NoRecovery(Recovery):
    """Settings of `recovery=none`: measure the pruned weights unchanged.

    Args:
        batch_norm_batches: training batches for re-estimating BatchNorm statistics; null = keep those of the dense network.
    """

    batch_norm_batches: Batches | None = 100

    name: ClassVar[str] = "none"
    trains_as_found: ClassVar[bool] = True

    def recover(self, round: Round) -> RoundRecord:
        start = working_time()
        round.masked.set(round.masks)
        retake_batch_norm(round, self.batch_norm_batches)
        return RoundRecord(seconds=working_time() - start)
