"""No recovery: prune and measure."""

import time
from dataclasses import dataclass
from typing import ClassVar

from sparsefront.recovery.base import Recovery, Round, RoundRecord
from sparsefront.recovery.batch_norm import retake_batch_norm, validate_batches


@dataclass(frozen=True)
class NoRecovery(Recovery):
    """Settings of `recovery=none`: the pruned weights are measured as they are.

    Args:
        batch_norm_batches: training batches from which BatchNorm statistics are taken again; null = those of the dense network.
    """

    batch_norm_batches: int | None = 100

    name: ClassVar[str] = "none"

    def __post_init__(self) -> None:
        validate_batches(self.batch_norm_batches)

    def recover(self, round: Round) -> RoundRecord:
        start = time.perf_counter()
        round.masked.set(round.masks)
        retake_batch_norm(round, self.batch_norm_batches)
        return RoundRecord(seconds=time.perf_counter() - start)
