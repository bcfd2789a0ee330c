"""Per-layer sparsities that reach a speedup with the least importance lost, from a table of measured layer times."""

import csv
import io
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import Field, PositiveInt

from sparsefront.allocation.assignment import at_least, at_most, choose_within
from sparsefront.allocation.base import LostImportance, PerLayerAllocation
from sparsefront.artifacts.bounded_files import read_table_text, separator_of
from sparsefront.artifacts.content_digest import file_digest
from sparsefront.errors import InvalidSetting
from sparsefront.options import program_command
from sparsefront.patterns.base import Pattern
from sparsefront.settings_class import settings_class

# The table of layer times for latency_aware: a CSV with one line per layer and sparsity.
#
#     layer,sparsity,latency_us,kernel,m,k,n,dtype,device,pattern,granularity
#     encoder.0.fc1,0,32.03,dense_linear,4096,384,1536,fp16,NVIDIA H200,block_wise,32
#     encoder.0.fc1,0.75,21.4,blocked_triton,4096,384,1536,fp16,NVIDIA H200,block_wise,32
#
# Sparsity 0 is the dense layer. Only the first three columns are required; the others document the measurement.

HOW_TO_MAKE = (
    "measure every layer at several sparsities on the GPU, then collect the times: "
    f"{program_command('run')} -m sparsity=0.5,0.75,0.875,0.9375 recovery=none allocation=per_layer (with your model, dataset "
    "and pattern), then python -m sparsefront.results.latency_table results/<that sweep> -o table.csv, "
    "and set allocation.table=table.csv"
)


@dataclass(frozen=True)
class LayerTime:
    """One line of the table. `latency_us`: median microseconds of one call; `m`, `k`, `n` of its product and all later
    columns may be empty.
    """

    layer: str
    sparsity: float
    latency_us: float
    kernel: str = ""
    m: str = ""
    k: str = ""
    n: str = ""
    dtype: str = ""
    device: str = ""
    pattern: str = ""
    granularity: str = ""


COLUMNS = tuple(column.name for column in fields(LayerTime))
REQUIRED = ("layer", "sparsity", "latency_us")


@dataclass(frozen=True)
class LatencyTable:
    """Times per layer: sparsity (ascending, 0 first) -> microseconds.

    Args:
        path: of the file, for messages.
        times: layer -> sparsity -> latency_us.
        pattern: (name, granularity) that was timed; empty strings if the table does not say.
    """

    path: str
    times: dict[str, dict[float, float]]
    pattern: tuple[str, str] = ("", "")

    def levels(self, layer: str, ceiling: float) -> dict[float, float]:
        """Sparsity -> microseconds of a layer: dense, and all levels up to `ceiling`.

        Raises:
            InvalidSetting: the layer is not in the table.
        """
        if layer not in self.times:
            held = list(self.times)
            examples = ", ".join(held[:3]) + (f" and {len(held) - 3} more" if len(held) > 3 else "")
            why = f"has no times of layer {layer}, which is to be pruned; it has {examples}"
            raise InvalidSetting("table", self.path, why)
        return {level: time for level, time in self.times[layer].items() if level <= ceiling + 1e-9}


def read_table(path: str | None) -> LatencyTable:
    """Read and validate the table at `path`.

    Raises:
        InvalidSetting: key `table`: not set or no such file, a column or number is missing or invalid, a layer lacks its
            dense time or any other one, or the times are of several patterns.
    """
    if path is None:
        raise InvalidSetting("table", path, f"latency_aware needs a table of measured layer times: {HOW_TO_MAKE}")
    file = Path(path).expanduser()
    if not file.is_file():
        raise InvalidSetting("table", path, f"is no file; to make one: {HOW_TO_MAKE}")
    try:
        lines = _lines(file)
    except (ValueError, OSError, csv.Error) as error:
        raise InvalidSetting("table", path, str(error)) from error
    times: dict[str, dict[float, float]] = {}
    for line in lines:
        if line.sparsity in times.setdefault(line.layer, {}):
            raise InvalidSetting("table", path, f"holds layer {line.layer} at sparsity {line.sparsity:g} twice")
        times[line.layer][line.sparsity] = line.latency_us
    for layer, levels in times.items():
        if 0.0 not in levels:
            raise InvalidSetting("table", path, f"has no dense time (sparsity 0) of layer {layer}")
        if len(levels) == 1:
            raise InvalidSetting("table", path, f"has only the dense time of layer {layer}, no sparsity to choose")
    patterns = {(line.pattern, line.granularity) for line in lines}
    if len(patterns) > 1:
        listed = ", ".join(" ".join(pattern).strip() or "unnamed" for pattern in sorted(patterns))
        raise InvalidSetting("table", path, f"mixes the times of several patterns ({listed}); make one table for each")
    return LatencyTable(path, {layer: dict(sorted(levels.items())) for layer, levels in times.items()}, *patterns)


def write_table(path: Path, lines: Iterable[LayerTime]) -> None:
    """Write the table, creating folders as needed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(asdict(line) for line in lines)


def _lines(file: Path) -> list[LayerTime]:
    """Parse the lines; ValueError names the bad one."""
    text = read_table_text(file)
    reader = csv.DictReader(io.StringIO(text, newline=""), restval="", delimiter=separator_of(text))
    missing = [column for column in REQUIRED if column not in (reader.fieldnames or [])]
    if missing:
        raise ValueError(f"lacks column {', '.join(missing)}; a table has {','.join(COLUMNS)}")
    lines = [_line(cells, reader.line_num) for cells in reader]
    if not lines:
        raise ValueError("has no times")
    return lines


def _line(cells: dict[str, str], number: int) -> LayerTime:
    known = {name: text.strip() for name, text in cells.items() if name in COLUMNS}
    try:
        sparsity, latency_us = float(known["sparsity"]), float(known["latency_us"])
    except ValueError:
        values = f"sparsity {known['sparsity']!r} and latency_us {known['latency_us']!r}"
        raise ValueError(f"line {number}: {values} are not both numbers") from None
    if not 0 <= sparsity < 1:
        raise ValueError(f"line {number}: sparsity {sparsity:g} is not a fraction of zeros in [0, 1)")
    if not (math.isfinite(latency_us) and latency_us > 0):
        raise ValueError(f"line {number}: latency_us {latency_us:g} of layer {known['layer']} is not above 0")
    return LayerTime(**known | {"sparsity": sparsity, "latency_us": latency_us})


Levels = dict[float, float]  # sparsity -> microseconds


@settings_class()
class LatencyAware(PerLayerAllocation):
    """Each layer gets one of the sparsities at which it was timed, or stays dense.

    Over the pruned layers, the sum of dense times divided by the sum of chosen times is at least `speedup`; of all such
    choices, the one that prunes the least total importance is taken. This is a prediction from layers timed individually;
    the measure stage finds the network's actual speedup. The configured `sparsity` is a ceiling for the table's levels.

    Args:
        table: CSV of measured times (see above), required.
        speedup: over the sum of the dense layer times, above 1.
        bins: number of totals kept after each layer; more bring the result closer to the optimum.
    Source: Frantar and Alistarh, SPDY, 2022; Shen et al., HALP, 2022 (see `choose_along`). The loss is the sum of pruned
        scores, instead of SPDY's learned sensitivities.
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
        """Check, before any training, that the table has the required times.

        Args:
            shapes: layers to prune -> [N, K].
            sparsity: the ceiling.
        Raises:
            InvalidSetting: key `table`: times of another pattern, a missing layer, or a level that the pattern cannot express
                in its layer; key `speedup`: not reachable under this ceiling.
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
    """Total time of the dense layers in picoseconds, each rounded down, so that savings are never overstated."""
    return sum(at_least(times[0.0]) for times in levels.values())


def _budget(levels: Mapping[str, Levels], speedup: float) -> int:
    """The picosecond budget of the chosen levels; the speedup is read as the decimal number that was typed."""
    return int(_dense_time(levels) // Fraction(str(speedup)))


def _require_same_pattern(table: LatencyTable, pattern: Pattern) -> None:
    """Raise InvalidSetting if the table names another pattern or granularity."""
    name, granularity = table.pattern
    unit = str(pattern.granularity) if pattern.uses_granularity else ""
    if name not in ("", pattern.name) or granularity not in ("", unit):
        table_pattern, runs = f"{name} {granularity}".strip(), f"{pattern.name} {unit}".strip()
        raise InvalidSetting("table", table.path, f"holds the times of {table_pattern}, while this run prunes {runs}")
