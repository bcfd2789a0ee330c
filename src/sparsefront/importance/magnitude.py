"""Importance by the size of a weight."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field
from torch import Tensor

from sparsefront.importance.base import WeightImportance
from sparsefront.settings_class import settings_class


@settings_class()
class Magnitude(WeightImportance):
    """|w| (l1) or w^2 (l2). Single weights rank the same by both; groups of weights do not.

    Source: Han et al., "Learning both Weights and Connections for Efficient Neural Networks", 2015.
    """

    norm: Annotated[Literal["l1", "l2"], Field(description="absolute value or square")] = "l1"
    name: ClassVar[str] = "magnitude"

    def of(self, matrix: Tensor) -> Tensor:
        return matrix.abs() if self.norm == "l1" else matrix.square()
