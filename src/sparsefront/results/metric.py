"""Formatting and ordering of metrics."""

from dataclasses import dataclass

from sparsefront.tasks.outcomes import BLEU, lower_is_better

NONE = "–"


@dataclass(frozen=True)
class Metric:
    """One metric, by its name in results.

    Fractions are shown in percent, and losses in percentage points; so is BLEU, without a percent sign. Perplexity is shown
    unscaled, lower is better, and losses are shown in percent of the dense network's.
    """

    name: str

    @property
    def less_is_better(self) -> bool:
        return lower_is_better(self.name)

    @property
    def scale(self) -> float:
        """Factor from value to displayed value."""
        return 1.0 if self.less_is_better else 100.0

    @property
    def unit(self) -> str:
        return "" if self.less_is_better or self.name == BLEU else " %"

    @property
    def sign(self) -> int:
        """Factor after which more is better."""
        return -1 if self.less_is_better else 1

    @property
    def label(self) -> str:
        """Axis label."""
        return f"{self.words}{' (less is better)' if self.less_is_better else f',{self.unit}' if self.unit else ''}"

    @property
    def words(self) -> str:
        return self.name.upper() if self.name == BLEU else self.name.replace("_", " ")

    def text(self, value: float | None, error: float | None = None) -> str:
        """`97.22 %`, `97.22 ± 0.31 %`, `28.15 ± 0.40`."""
        if value is None:
            return NONE
        spread = "" if error is None else f" ± {self.scale * error:.2f}"
        return f"{self.scale * value:.2f}{spread}{self.unit}"

    def compute_loss(self, baseline: float, reached: float) -> float:
        """Percentage points below the baseline; for perplexity, percent above it. Negative if better."""
        return 100 * (reached / baseline - 1) if self.less_is_better else 100 * (baseline - reached)

    def format_loss(self, value: float, unit: str | None = None) -> str:
        """`0.40 points lost`, `0.08 points gained`; of a perplexity `12.00 % more`, `1.20 % less`.

        Args:
            unit: after the number; None = the metric's own.
        """
        size, worse = f"{abs(value):.2f}", round(value, 2) >= 0
        if self.less_is_better:
            return f"{size} % {'more' if worse else 'less'}"
        return f"{size}{' points' if unit is None else unit} {'lost' if worse else 'gained'}"

    def budget_text(self, numbers: str) -> str:
        """The allowed loss, for numbers such as `0.5 or 1`: `0.5 or 1 points lost`, `0.5 or 1 % more perplexity`."""
        if self.less_is_better:
            return f"{numbers} % more {self.words}"
        return f"{numbers} point{'' if numbers == '1' else 's'} lost"
