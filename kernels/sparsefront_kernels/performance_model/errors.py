"""How far predictions are from measurements."""

from collections.abc import Iterable
from dataclasses import dataclass
from math import exp, log
from statistics import median, quantiles


@dataclass(frozen=True)
class Errors:
    """Of |predicted / measured - 1|.

    Args:
        rows: how many predictions.
        median, p90: of the error.
        bias: geometric mean of predicted / measured: above 1 the model is too slow.
    """

    rows: int
    median: float
    p90: float
    bias: float

    @classmethod
    def of(cls, ratios: Iterable[float]) -> "Errors":
        """From predicted / measured, of at least one prediction."""
        ratios = list(ratios)
        errors = sorted(abs(ratio - 1) for ratio in ratios)
        p90 = quantiles(errors, n=10, method="inclusive")[8] if len(errors) > 1 else errors[0]
        return cls(len(errors), median(errors), p90, exp(sum(map(log, ratios)) / len(ratios)))

    def as_dict(self) -> dict[str, float]:
        """Numbers of four digits."""
        return {"rows": self.rows, **{name: float(f"{getattr(self, name):.4g}") for name in ("median", "p90", "bias")}}
