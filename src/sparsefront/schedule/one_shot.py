"""One-shot pruning, before any recovery."""

from typing import ClassVar

from sparsefront.schedule.base import Schedule
from sparsefront.settings_class import settings_class


@settings_class()
class OneShot(Schedule):
    """Settings of `schedule=one_shot`: the final masks are made at the start and never change."""

    name: ClassVar[str] = "one_shot"

    def round_sparsities(self, final: float) -> tuple[float, ...]:
        return (final,)

    def sparsity_at(self, progress: float, final: float) -> float:
        return final
