"""The table of measured layer times that latency_aware reads: one CSV line per layer and sparsity.

    layer,sparsity,latency_us,kernel,m,k,n,dtype,device,pattern,granularity
    encoder.0.fc1,0,32.03,dense_linear,4096,384,1536,fp16,NVIDIA H200,block_wise,32
    encoder.0.fc1,0.75,21.4,blocked_triton,4096,384,1536,fp16,NVIDIA H200,block_wise,32

Sparsity 0 is the dense layer. Only the first three columns are read as numbers; the others say where a time comes from.
"""

import csv
import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from sparsefront.errors import InvalidSetting

HOW_TO_MAKE = (
    "measure every layer at several sparsities on the GPU, then collect the times: "
    "python run.py -m sparsity=0.5,0.75,0.875,0.9375 recovery=none allocation=per_layer (with your model, dataset and "
    "pattern), then python -m sparsefront.report.latency_table results/<that sweep> -o table.csv, "
    "and set allocation.table=table.csv"
)


@dataclass(frozen=True)
class LayerTime:
    """One line. `latency_us`: median microseconds of one call; `m`, `k`, `n` of its product and whatever comes after may be
    empty.
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
        path: where it was read, for messages.
        times: layer -> sparsity -> latency_us.
        pattern: (name, granularity) that the times belong to; empty text where the table does not say.
    """

    path: str
    times: dict[str, dict[float, float]]
    pattern: tuple[str, str] = ("", "")

    def levels(self, layer: str, ceiling: float) -> dict[float, float]:
        """Sparsity -> microseconds of a layer: dense, and every level up to `ceiling`.

        Raises:
            InvalidSetting: the table does not hold the layer.
        """
        if layer not in self.times:
            held = list(self.times)
            named = ", ".join(held[:3]) + (f" and {len(held) - 3} more" if len(held) > 3 else "")
            why = f"has no times of layer {layer}, which is to be pruned; it has {named}"
            raise InvalidSetting("table", self.path, why)
        return {level: time for level, time in self.times[layer].items() if level <= ceiling + 1e-9}


def read_table(path: str | None) -> LatencyTable:
    """The table at `path`, checked.

    Raises:
        InvalidSetting: key `table`: none is set, no such file, a column or number that is missing or impossible, a layer
            without its dense time or without any other, or times of several patterns.
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
    """Write the table; folders are made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(asdict(line) for line in lines)


def _lines(file: Path) -> list[LayerTime]:
    """The lines with their numbers read; ValueError says which is wrong."""
    with file.open(newline="", encoding="utf-8") as stream:
        reader = csv.DictReader(stream, restval="")
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
        given = f"sparsity {known['sparsity']!r} and latency_us {known['latency_us']!r}"
        raise ValueError(f"line {number}: {given} are not both numbers") from None
    if not 0 <= sparsity < 1:
        raise ValueError(f"line {number}: sparsity {sparsity:g} is not a fraction of zeros in [0, 1)")
    if not (math.isfinite(latency_us) and latency_us > 0):
        raise ValueError(f"line {number}: latency_us {latency_us:g} of layer {known['layer']} is not above 0")
    return LayerTime(**known | {"sparsity": sparsity, "latency_us": latency_us})
