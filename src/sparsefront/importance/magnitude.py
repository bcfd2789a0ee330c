"""Importance by weight magnitude."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field
from torch import Tensor

from sparsefront.importance.base import WeightImportance
from sparsefront.settings_class import settings_class


@settings_class()
class Magnitude(WeightImportance):
    """|w| (l1) or w^2 (l2). Both rank single weights equally, but not groups of weights.

    Source: Han et al., "Learning both Weights and Connections for Efficient Neural Networks", 2015.
    """

    norm: Annotated[Literal["l1", "l2"], Field(description="absolute value or square")] = "l1"
    name: ClassVar[str] = "magnitude"

    def of(self, matrix: Tensor) -> Tensor:
        return matrix.abs() if self.norm == "l1" else matrix.square()
