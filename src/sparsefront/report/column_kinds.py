"""What a column of a table of results holds, and how its values are written."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sparsefront.pruning.collapse import collapsed_layers
from sparsefront.report.baseline import points_lost
from sparsefront.report.result import Result
from sparsefront.report.run_command import override_text


def percent(fraction: float | None) -> str:
    """A quality as people read it: 0.9722 -> "97.22 %"."""
    return "–" if fraction is None else f"{100 * fraction:.2f} %"


def milliseconds(value: float | None) -> str:
    """Three digits that count, whole numbers from 100 on."""
    if value is None:
        return "–"
    return f"{value:.0f}" if value >= 100 else f"{value:#.3g}".rstrip(".")


def points(value: float | None) -> str:
    """Percentage points."""
    return "–" if value is None else f"{value:.2f}"


def lost_in_words(value: float, unit: str = " points") -> str:
    """Percentage points that were lost: "0.40 points lost"; "0.08 points gained" of a negative value."""
    return f"{abs(value):.2f}{unit} {'gained' if round(value, 2) < 0 else 'lost'}"


def fraction(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def times(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}×"


def plain(value: Any) -> str:
    return "–" if value is None else str(value)


@dataclass(frozen=True)
class Column:
    """One field as a column; a `constant_aside` column is left out, and told beside the table, where all results agree.

    `error`: field of the value's standard error, in the same unit. `of`: what the value is, where the field's name does not
    tell: `dense` is headed "dense accuracy", or with the name of the metric that all results share.
    """

    field: str
    text: Callable[[Any], str] = plain
    numeric: bool = False
    constant_aside: bool = False
    error: str | None = None
    of: str | None = None

    def heading(self, metric: str | None = None) -> str:
        """Above the column: the field's name, which `sort=` takes, and what it is the value of.

        Args:
            metric: name of the metric of all results of the table; None where they differ.
        """
        return self.field if self.of is None else f"{self.field} {metric or self.of}"

    def value(self, result: Result) -> Any:
        """What the cell of this result holds."""
        return result.value_of(self.field)

    def cell(self, result: Result) -> str:
        """The value in words, with its standard error where that is known."""
        text, error = self.text(self.value(result)), None if self.error is None else result.value_of(self.error)
        return text if error is None else f"{text.removesuffix(' %')} ± {self.text(error)}"


@dataclass(frozen=True)
class CollapsedColumn(Column):
    """How many layers collapsed, of records too that are older than the field."""

    def value(self, result: Result) -> int | None:
        sparsities = result.sparsity.sparsity_per_layer
        return len(collapsed_layers(sparsities, result.sparsity.sparsity_target)) if sparsities else None


@dataclass(frozen=True)
class DenseShareColumn(Column):
    """Which part of the prunable weights lies in layers that stayed dense; unknown of records older than the field."""

    def value(self, result: Result) -> float | None:
        shares = result.sparsity.dense_weight_shares
        return None if result.sparsity.dense_layers and not shares else sum(shares.values())


@dataclass(frozen=True)
class RecoverySeedColumn(Column):
    """The seed of a recovery that has one of its own."""

    def value(self, result: Result) -> int | None:
        again = result.identity.recovery_seed
        return None if again == result.identity.seed else again


@dataclass(frozen=True)
class PointsLostColumn(Column):
    """Against the dense network trained on for the same budget, where there is one."""

    def value(self, result: Result) -> float | None:
        return points_lost(result)


@dataclass(frozen=True)
class SettingsColumn(Column):
    """The parameters in which results of one table differ though they chose the same parts: `recovery.hardness=1.0`.

    `keys`: (part, parameter).
    """

    keys: tuple[tuple[str, str], ...] = ()

    def value(self, result: Result) -> str | None:
        found = ((part, key, result.value_of(f"{part}_parameters")) for part, key in self.keys)
        return " ".join(override_text(f"{part}.{key}", held[key]) for part, key, held in found if key in held) or None
