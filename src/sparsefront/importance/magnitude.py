"""Importance by the size of a weight."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from sparsefront.errors import InvalidSetting
from sparsefront.importance.base import WeightImportance


@dataclass(frozen=True)
class Magnitude(WeightImportance):
    """|w| (l1) or w^2 (l2). Single weights rank the same by both; groups of weights do not.

    Source: Han et al., "Learning both Weights and Connections for Efficient Neural Networks", 2015.
    """

    norm: str = "l1"
    name: ClassVar[str] = "magnitude"

    def __post_init__(self) -> None:
        if self.norm not in ("l1", "l2"):
            raise InvalidSetting("norm", self.norm, "l1 (absolute value) or l2 (square)")

    def of(self, matrix: Tensor) -> Tensor:
        return matrix.abs() if self.norm == "l1" else matrix.square()
