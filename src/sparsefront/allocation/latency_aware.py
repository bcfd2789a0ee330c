"""Per-layer sparsities that reach a speedup, by measured layer times, at the least importance lost."""

from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import Field, PositiveInt

from sparsefront.allocation.base import LostImportance, PerLayerAllocation
from sparsefront.allocation.knapsack import choose_within
from sparsefront.allocation.latency_table import LatencyTable, read_table
from sparsefront.allocation.picoseconds import at_least, at_most
from sparsefront.artifacts.content_digest import file_digest
from sparsefront.declared.settings_class import settings_class
from sparsefront.errors import InvalidSetting
from sparsefront.patterns.base import Pattern

Levels = dict[float, float]  # sparsity -> microseconds


@settings_class()
class LatencyAware(PerLayerAllocation):
    """Every layer gets one of the sparsities at which it was timed, or stays dense.

    The sum of the dense times over the sum of the chosen ones is at least `speedup`, over the layers that are pruned;
    of all such choices, the one that prunes the least total importance. It is a prediction from layers timed one by one:
    what the network gains is what the measure stage then finds. The root's `sparsity` is a ceiling: levels of the table
    above it are not used.

    Args:
        table: CSV of measured times (see `latency_table`); there is no default, and without one the run is rejected.
        speedup: wanted over the sum of the dense layer times, above 1.
        bins: how many totals the search keeps after each layer; more bring it closer to the best choice.
    Source: Frantar and Alistarh, SPDY, 2022; Shen et al., HALP, 2022 (see `knapsack`). The importance lost is the sum
        of the scores that the pattern prunes, in place of SPDY's learnt sensitivities.
    """

    table: str | None = None
    speedup: Annotated[float, Field(gt=1, description="dense time over sparse time")] = 1.5
    bins: PositiveInt = 10_000
    name: ClassVar[str] = "latency_aware"
    any_sparsity: ClassVar[bool] = False
    fingerprinted: ClassVar[frozenset[str]] = frozenset({"table"})

    def check_sparsity(self, sparsity: float) -> None:
        read_table(self.table)

    def check_layers(self, pattern: Pattern, shapes: Mapping[str, tuple[int, int]], sparsity: float) -> None:
        """Check, before anything is trained, that this table has what is asked for.

        Args:
            shapes: the layers that will be pruned -> [N, K].
            sparsity: the ceiling.
        Raises:
            InvalidSetting: key `table`: times of another pattern, a layer that it lacks, a level that the pattern cannot
                express in its layer; key `speedup`: out of reach under this ceiling.
        """
        table = read_table(self.table)
        _require_same_pattern(table, pattern)
        levels = {layer: table.levels(layer, sparsity) for layer in shapes}
        for layer, shape in shapes.items():
            for level in levels[layer]:
                if level > 0 and (reason := pattern.inexpressible(shape, level)) is not None:
                    why = f"times {layer} at sparsity {level:g}, which {pattern.name} cannot express: {reason}"
                    raise InvalidSetting("table", self.table, why)
        self._require_within_reach(levels, sparsity)

    def layer_sparsities(
        self, weight_shapes: Mapping[str, tuple[int, ...]], sparsity: float, lost: LostImportance
    ) -> dict[str, float]:
        try:
            table = read_table(self.table)
            levels = {layer: table.levels(layer, sparsity) for layer in weight_shapes}
            self._require_within_reach(levels, sparsity)
        except InvalidSetting as error:
            raise error.within("allocation") from error
        chosen = choose_within(
            [[at_most(latency_us) for latency_us in times.values()] for times in levels.values()],
            [[lost(layer, level) for level in times] for layer, times in levels.items()],
            _budget(levels, self.speedup),
            bins=self.bins,
        )
        return {layer: list(times)[choice] for (layer, times), choice in zip(levels.items(), chosen, strict=True)}

    def fingerprint(self) -> dict[str, Any]:
        file = Path(self.table or "").expanduser()
        return {"table": file_digest(file) if file.is_file() else None}

    def _require_within_reach(self, levels: Mapping[str, Levels], sparsity: float) -> None:
        fastest = sum(min(at_most(latency_us) for latency_us in times.values()) for times in levels.values())
        if fastest <= _budget(levels, self.speedup):
            return
        largest = 1000 * _dense_time(levels) // fastest / 1000
        levels_used = f"the levels of {self.table} up to sparsity={sparsity:g}, the ceiling,"
        raise InvalidSetting("speedup", self.speedup, f"out of reach: {levels_used} allow {largest:.3f} at most")


def _dense_time(levels: Mapping[str, Levels]) -> int:
    """The time of the dense layers together, in picoseconds, each rounded down: what is saved is never overstated."""
    return sum(at_least(times[0.0]) for times in levels.values())


def _budget(levels: Mapping[str, Levels], speedup: float) -> int:
    """The picoseconds that the chosen levels may take together; the speedup is the decimal number that was typed."""
    return int(_dense_time(levels) // Fraction(str(speedup)))


def _require_same_pattern(table: LatencyTable, pattern: Pattern) -> None:
    """Raise InvalidSetting where the table names another pattern or another granularity."""
    name, granularity = table.pattern
    unit = str(pattern.granularity) if pattern.uses_granularity else ""
    if name not in ("", pattern.name) or granularity not in ("", unit):
        given, runs = f"{name} {granularity}".strip(), f"{pattern.name} {unit}".strip()
        raise InvalidSetting("table", table.path, f"holds the times of {given}, while this run prunes {runs}")
