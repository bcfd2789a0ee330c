"""What every allocation provides: how much of each layer goes, also where it is measured."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from torch import Tensor

from sparsefront.allocation.assignment import Assignment, ChoiceTable, Refined
from sparsefront.errors import InvalidSetting
from sparsefront.masks.groups import Groups
from sparsefront.options import options_where
from sparsefront.patterns.base import Pattern

LostImportance = Callable[[str, float], float]
SAME_PATTERN = "gives every layer the same pattern"
BLOCKS = "gives layers shares of their own, and whole blocks go"


class Allocation(ABC):
    """Decides how much of each layer goes. Subclasses are frozen dataclasses, fields as in their YAML.

    Attributes:
        fixed_by_first_scores: what it gives the layers follows from the scores before the first masks.
    """

    name: ClassVar[str]
    fixed_by_first_scores: ClassVar[bool] = False
    same_everywhere: ClassVar[bool] = False
    """Whether every layer is given the sparsity that is asked for, so that nothing is decided among layers."""
    fingerprinted: ClassVar[frozenset[str]] = frozenset()
    """Settings that `fingerprint` speaks for, so that keys of stored stages do without them."""

    def mismatch(self, pattern: Pattern) -> str | None:
        """What of this allocation the pattern cannot meet, by what both declare; None where they go together."""
        return SAME_PATTERN if pattern.mixed else None

    def check_pattern(self, pattern: Pattern) -> None:
        """Raise InvalidSetting where they do not go together, with the allocations that do."""

        def mismatch(allocation: Allocation) -> str | None:
            if pattern.takes_blocks:
                return None if allocation.same_everywhere else BLOCKS
            return allocation.mismatch(pattern)

        if (why := mismatch(self)) is None:
            return
        met = options_where("sparsefront.allocation", lambda allocation: mismatch(allocation) is None)
        allowed = f"pattern {pattern.name} can meet {', '.join(met)}; {self.name} {why}"
        raise InvalidSetting("allocation", self.name, allowed)

    def check_sparsity(self, sparsity: float) -> None:
        """Raise InvalidSetting where the settings contradict this sparsity of the whole network."""

    def check_layers(self, pattern: Pattern, shapes: Mapping[str, tuple[int, int]], sparsity: float) -> None:
        """Raise InvalidSetting where these layers ([N, K] of each) cannot be given what the settings ask for."""

    def fingerprint(self) -> dict[str, Any]:
        """What the choice depends on beside the settings (content of files), for the keys of stored stages."""
        return {}


class GlobalAllocation(Allocation):
    """Ranks the groups of all layers together, so that a layer's sparsity is an outcome of each step."""

    def mismatch(self, pattern: Pattern) -> str | None:
        """Windows are decided one by one, so no ranking spans layers."""
        if pattern.mixed:
            return SAME_PATTERN
        return "ranks groups across layers, and each layer keeps n of every m" if pattern.balanced else None

    @abstractmethod
    def select(self, groups: Mapping[str, Groups], numel: Mapping[str, int], target: float) -> dict[str, Tensor]:
        """Pick the survivors of one free step.

        Args:
            groups: per layer, what the step keeps or prunes; weights outside all groups are gone already.
            numel: per layer, its number of weights.
            target: sparsity wanted over all weights of these layers when the step is done.
        Returns:
            per layer, bool in the shape of its scores, True = survives. As many weights go as the target allows and
            the next group would exceed it; ties keep the lower index, and between layers the earlier.
        """


class PerLayerAllocation(Allocation):
    """Gives every layer a sparsity of its own beforehand; the groups are then ranked within the layer.

    Attributes:
        any_sparsity: a layer may be given any sparsity; False: only the root's, or what `check_layers` found that the
            pattern can express.
        fixed_by_first_scores: False where `layer_sparsities` does without `lost`.
    """

    any_sparsity: ClassVar[bool] = True
    fixed_by_first_scores: ClassVar[bool] = True

    def mismatch(self, pattern: Pattern) -> str | None:
        if pattern.mixed:
            return SAME_PATTERN
        if not self.any_sparsity or pattern.any_sparsity:
            return None
        return "may give a layer any sparsity, and not every one can be expressed"

    @abstractmethod
    def layer_sparsities(
        self, weight_shapes: Mapping[str, tuple[int, ...]], sparsity: float, lost: LostImportance
    ) -> dict[str, float]:
        """The sparsity of each layer.

        Args:
            weight_shapes: per layer, the shape of its weight: Linear (N, K), Conv2d (C_out, C_in, kh, kw).
            sparsity: wanted over all weights of these layers.
            lost: (layer, sparsity) -> the sum of the scores that the pattern prunes in this layer at this sparsity. It
                makes a mask, so it is asked no more often than needed.
        Returns:
            per layer, in [0, 1); 0 keeps the layer dense.
        """


# What an allocation that measures provides, and what it is given.


@dataclass(frozen=True)
class Measured:
    """Microseconds of a whole network, pruned and with kernels swapped in, and of the dense one in turn with it."""

    network_us: float
    dense_us: float


class Network(Protocol):
    """The network that is searched, as far as a search asks it."""

    def measure(self, assignment: Assignment) -> Measured:
        """Both, as a result will have them."""
        ...

    def loss(self, assignment: Assignment, batches: int) -> float:
        """Its loss on so many held-out batches, pruned and not trained since."""
        ...


@dataclass(frozen=True)
class Found:
    """The outcome of a search.

    Args:
        assignment: of all items.
        predicted_ms: of the whole network.
        budget_ms: that was asked for; of a speedup, what the dense network allows.
        dense_ms: of the dense network, which a speedup is asked of: in turn with those that were measured, on average, or as the
            table has it where none was.
        rounds: (predicted, measured) milliseconds of each solution that the prediction was corrected by.
        refined: what swaps brought.
    """

    assignment: Assignment
    predicted_ms: float
    budget_ms: float
    dense_ms: float
    rounds: list[tuple[float, float]] = field(default_factory=list)
    refined: Refined | None = None


class MeasuringAllocation(Allocation):
    """Gives every layer a pattern and a sparsity of its own, by what is measured of the network on the device at hand."""

    fixed_by_first_scores: ClassVar[bool] = True

    def mismatch(self, pattern: Pattern) -> str | None:
        return None if pattern.mixed or not pattern.prunes else "chooses among the candidates of pattern mixed"

    @property
    @abstractmethod
    def calibration_batches(self) -> int:
        """From how many batches of inputs the errors of a table come; nothing else of its settings changes a table."""

    @abstractmethod
    def assign(self, table: ChoiceTable, network: Network, tell: Callable[[str], None] = lambda line: None) -> Found:
        """Choose.

        Args:
            tell: gets a line for each step.
        Raises:
            InvalidSetting: what is asked for is out of reach; says what is not.
        """
