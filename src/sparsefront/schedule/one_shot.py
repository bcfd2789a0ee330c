"""Prune once, before any recovery."""

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True)
class OneShot:
    """Settings of `schedule=one_shot`: the final masks stand from the start and never change."""

    name: ClassVar[str] = "one_shot"
    trains: ClassVar[bool] = False

    def sparsity_at(self, progress: float, final: float) -> float:
        """The final sparsity, whatever the progress."""
        return final

    def updates_of(self, total_steps: int, final: float) -> dict[int, float]:
        """No step of the training changes the masks."""
        return {}
