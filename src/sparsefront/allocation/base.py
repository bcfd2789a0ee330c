"""The allocation interface: how much to prune in each layer, with or without measurements."""

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
    """Decides how much of each layer to prune. Subclasses are frozen dataclasses whose fields are the keys of their YAML.

    Attributes:
        fixed_by_first_scores: layer sparsities are determined by the scores before the first masks.
    """

    name: ClassVar[str]
    fixed_by_first_scores: ClassVar[bool] = False
    same_everywhere: ClassVar[bool] = False
    """Whether every layer gets the requested sparsity, so that nothing is decided across layers."""
    fingerprinted: ClassVar[frozenset[str]] = frozenset()
    """Settings that `fingerprint` covers, so that keys of stored stages leave them out."""

    def mismatch(self, pattern: Pattern) -> str | None:
        """Why this allocation cannot be combined with the pattern; None if it can."""
        return SAME_PATTERN if pattern.mixed else None

    def check_pattern(self, pattern: Pattern) -> None:
        """Raise InvalidSetting, naming the supported allocations, if the pattern cannot be combined with this one."""

        def mismatch(allocation: Allocation) -> str | None:
            if pattern.takes_blocks:
                return None if allocation.same_everywhere else BLOCKS
            return allocation.mismatch(pattern)

        why = mismatch(self)
        if why is None:
            return
        met = options_where("sparsefront.allocation", lambda allocation: mismatch(allocation) is None)
        allowed = f"pattern {pattern.name} can meet {', '.join(met)}; {self.name} {why}"
        raise InvalidSetting("allocation", self.name, allowed)

    def check_sparsity(self, sparsity: float) -> None:
        """Raise InvalidSetting if the settings contradict this sparsity of the whole network."""

    def check_layers(self, pattern: Pattern, shapes: Mapping[str, tuple[int, int]], sparsity: float) -> None:
        """Raise InvalidSetting if these layers ([N, K] each) cannot get what the settings ask for."""

    def fingerprint(self) -> dict[str, Any]:
        """What else the choice depends on besides the settings (file contents), for the keys of stored stages."""
        return {}


class GlobalAllocation(Allocation):
    """Ranks the groups of all layers together, so that layer sparsities are an outcome of each step."""

    def mismatch(self, pattern: Pattern) -> str | None:
        """Windows are pruned independently, so they cannot be ranked across layers."""
        if pattern.mixed:
            return SAME_PATTERN
        if pattern.multiple_of > 1:
            return "ranks the units of all layers together, and their widths are then no multiples"
        return "ranks groups across layers, and each layer keeps n of every m" if pattern.balanced else None

    @abstractmethod
    def select(self, groups: Mapping[str, Groups], numel: Mapping[str, int], target: float) -> dict[str, Tensor]:
        """Select the survivors of one step of a free pattern.

        Args:
            groups: layer -> its groups; weights outside all groups are already pruned.
            numel: layer -> its number of weights.
            target: sparsity over all weights of these layers after the step.
        Returns:
            layer -> bool in the shape of its scores, True = survives. As many weights are pruned as possible without exceeding
            the target; ties keep the lower index and, across layers, the earlier layer.
        """


class PerLayerAllocation(Allocation):
    """Fixes a sparsity for every layer beforehand; groups are then ranked within the layer.

    Attributes:
        any_sparsity: layers may get any sparsity; False: only the configured one, or levels that `check_layers` has found
            the pattern can express.
        fixed_by_first_scores: False if `layer_sparsities` does not use `lost`.
    """

    any_sparsity: ClassVar[bool] = True
    fixed_by_first_scores: ClassVar[bool] = True

    def mismatch(self, pattern: Pattern) -> str | None:
        if pattern.mixed:
            return SAME_PATTERN
        if not self.any_sparsity or pattern.any_sparsity:
            return None
        return "may give a layer any sparsity, and not every one can be expressed"

    def sparsities_of(
        self,
        scores: Mapping[str, Tensor],
        weight_shapes: Mapping[str, tuple[int, ...]],
        sparsity: float,
        lost: LostImportance,
    ) -> dict[str, float]:
        """`layer_sparsities`, for allocations that look at the scores [N, K] themselves."""
        return self.layer_sparsities(weight_shapes, sparsity, lost)

    @abstractmethod
    def layer_sparsities(
        self, weight_shapes: Mapping[str, tuple[int, ...]], sparsity: float, lost: LostImportance
    ) -> dict[str, float]:
        """The sparsity of each layer.

        Args:
            weight_shapes: layer -> shape of its weight: Linear (N, K), Conv2d (C_out, C_in, kh, kw).
            sparsity: over all weights of these layers.
            lost: (layer, sparsity) -> sum of the scores pruned in this layer at this sparsity. Expensive: each call makes
                a mask.
        Returns:
            layer -> sparsity in [0, 1); 0 keeps the layer dense.
        """


@dataclass(frozen=True)
class Measured:
    """Microseconds of the pruned network with its kernels and of the dense one, timed in turn."""

    network_us: float
    dense_us: float


class Network(Protocol):
    """The network interface of a latency search."""

    def measure(self, assignment: Assignment) -> Measured:
        """Measure the pruned and the dense network, in the same way as for a result."""
        ...

    def loss(self, assignment: Assignment, batches: int) -> float:
        """Loss on this many held-out batches, pruned and not retrained."""
        ...


@dataclass(frozen=True)
class Found:
    """The result of a latency search.

    Args:
        assignment: of all items.
        predicted_ms: of the whole network.
        budget_ms: the requested latency; for a speedup, derived from the dense network.
        dense_ms: of the dense network, the reference for a speedup: averaged over the timings in turn with measured
            solutions, or as in the table if none was measured.
        rounds: (predicted, measured) milliseconds of each solution used to correct the prediction.
        refined: result of the evolutionary refinement.
    """

    assignment: Assignment
    predicted_ms: float
    budget_ms: float
    dense_ms: float
    rounds: list[tuple[float, float]] = field(default_factory=list)
    refined: Refined | None = None


class MeasuringAllocation(Allocation):
    """Assigns a pattern and sparsity to every layer from measurements of the network on this device."""

    fixed_by_first_scores: ClassVar[bool] = True

    def mismatch(self, pattern: Pattern) -> str | None:
        return None if pattern.mixed or not pattern.prunes else "chooses among the candidates of pattern mixed"

    @property
    @abstractmethod
    def calibration_batches(self) -> int:
        """Number of input batches for the errors of a table; no other setting changes a table."""

    @abstractmethod
    def assign(self, table: ChoiceTable, network: Network, tell: Callable[[str], None] = lambda line: None) -> Found:
        """Choose a pattern and sparsity for every item.

        Args:
            tell: receives a line per step.
        Raises:
            InvalidSetting: the target cannot be reached; says what can be.
        """
