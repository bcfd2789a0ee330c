"""What an allocation that measures provides, and what it is given."""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

from sparsefront.allocation.base import Allocation
from sparsefront.allocation.choice_table import Assignment, ChoiceTable
from sparsefront.allocation.swaps import Refined
from sparsefront.patterns.base import Pattern


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
