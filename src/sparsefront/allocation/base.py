"""What every allocation provides: the survivors of one step, for all layers at once."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar

from torch import Tensor

from sparsefront.patterns.groups import Groups


class Allocation(ABC):
    """Decides how much of each layer goes. Subclasses are frozen dataclasses, fields as in their YAML."""

    name: ClassVar[str]

    def check_sparsity(self, sparsity: float) -> None:
        """Raise InvalidSetting where the settings contradict this sparsity of the whole network."""

    @abstractmethod
    def select(
        self, groups: Mapping[str, Groups], shapes: Mapping[str, tuple[int, int]], target: float
    ) -> dict[str, Tensor]:
        """Pick the survivors of one free step.

        Args:
            groups: per layer, what the step lets live or die; weights outside all groups are gone already.
            shapes: per layer, [N, K].
            target: sparsity wanted over all weights of these layers when the step is done.
        Returns:
            per layer, bool in the shape of its scores, True = survives. As many weights go as the target allows and
            the next group would exceed it; ties keep the lower index, and between layers the earlier.
        """
