"""How the value of a metric is written, and which of two values is better."""

from dataclasses import dataclass

from sparsefront.tasks.outcomes import BLEU, lower_is_better

NONE = "–"


@dataclass(frozen=True)
class Metric:
    """One metric, by its name in results.

    Fractions are shown in percent, and lost in percentage points; BLEU likewise, without a percent sign. A perplexity is shown
    as it is, less of it is better, and what is lost is shown in percent of the dense network's.
    """

    name: str

    @property
    def less_is_better(self) -> bool:
        return lower_is_better(self.name)

    @property
    def scale(self) -> float:
        """What a value is multiplied by where it is shown."""
        return 1.0 if self.less_is_better else 100.0

    @property
    def unit(self) -> str:
        return "" if self.less_is_better or self.name == BLEU else " %"

    @property
    def sign(self) -> int:
        """Of a value times it, more is better."""
        return -1 if self.less_is_better else 1

    @property
    def label(self) -> str:
        """Of an axis."""
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

    def lost(self, baseline: float, reached: float) -> float:
        """Percentage points below the baseline; of a perplexity by how many percent it is above. Negative where it is better."""
        return 100 * (reached / baseline - 1) if self.less_is_better else 100 * (baseline - reached)

    def lost_text(self, value: float, unit: str | None = None) -> str:
        """`0.40 points lost`, `0.08 points gained`; of a perplexity `12.00 % more`, `1.20 % less`.

        Args:
            unit: behind the number; None: its own.
        """
        size, worse = f"{abs(value):.2f}", round(value, 2) >= 0
        if self.less_is_better:
            return f"{size} % {'more' if worse else 'less'}"
        return f"{size}{' points' if unit is None else unit} {'lost' if worse else 'gained'}"

    def budget_text(self, numbers: str) -> str:
        """What may be lost, such as `0.5 or 1`: `0.5 or 1 points lost`, `0.5 or 1 % more perplexity`."""
        if self.less_is_better:
            return f"{numbers} % more {self.words}"
        return f"{numbers} point{'' if numbers == '1' else 's'} lost"
