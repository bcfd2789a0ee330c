"""What accuracy is drawn against.

Speedup is the default: each is against the dense baseline of its own process, timed in turn with it. Milliseconds of
different processes differ by more than many speedups do, and a point of 1.5x may come out slower than one of 1.2x.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from sparsefront.errors import InvalidSetting
from sparsefront.report.column_kinds import milliseconds, times
from sparsefront.report.result import Result


@dataclass(frozen=True)
class Axis:
    """A value of a result, as the horizontal axis of a plot.

    Args:
        name: as the settings call it.
        field: of the result.
        label: of the axis.
        text: a value in words, with its unit.
        unit: of areas under a front.
        larger_is_better: a front runs the other way then.
    """

    name: str
    field: str
    label: str
    text: Callable[[float | None], str]
    unit: str
    larger_is_better: bool

    def value(self, result: Result) -> float | None:
        """None where it was not measured."""
        return result.value_of(self.field)

    def interval(self, result: Result) -> tuple[float, float] | None:
        """The 95 % interval of a result's value; None where there is none, as of a latency."""
        ends = (result.speed.speedup_low, result.speed.speedup_high) if self.larger_is_better else (None, None)
        return None if None in ends else ends

    def dense(self, results: Sequence[Result]) -> float | None:
        """Where the dense baseline of these results lies: at 1, or at the median of its latencies; None where not timed."""
        latencies = [result.speed.latency_dense_ms for result in results if result.speed.latency_dense_ms is not None]
        if not latencies:
            return None
        return 1.0 if self.larger_is_better else median(latencies)

    def cost(self, value: float) -> float:
        """The value so that less is better."""
        return -value if self.larger_is_better else value


SPEEDUP = Axis("speedup", "speedup", "speedup over dense in the same process", times, "×", True)
LATENCY = Axis(
    "latency_ms", "latency_sparse_ms", "latency of a batch, ms", lambda value: f"{milliseconds(value)} ms", "ms", False
)
AXES = {axis.name: axis for axis in (SPEEDUP, LATENCY)}


def axis_named(name: str) -> Axis:
    """The axis that a setting `axis` means.

    Raises:
        InvalidSetting: there is none of that name.
    """
    if name not in AXES:
        raise InvalidSetting("axis", name, f"is one of {', '.join(AXES)}")
    return AXES[name]
