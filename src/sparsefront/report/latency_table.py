"""From the rows of a sweep to the table of layer times that allocation=latency_aware reads.

python -m sparsefront.report.latency_table results/SWEEP -o table.csv [--only LEAF=VALUE ...]
"""

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median_low
from typing import Any

from sparsefront.allocation.latency_table import LayerTime, read_table, write_table
from sparsefront.errors import InvalidSetting
from sparsefront.report.row import Row, leaves
from sparsefront.report.store import read_rows

DENSE_KERNELS = ("dense_linear", "dense_conv2d")
# Times stand in one table only where all of these agree.
SAME = (
    "model",
    "model_variant",
    "dataset",
    "dataset_task",
    "pattern",
    "pattern_parameters",
    "gpu",
    "dtype",
    "layout",
    "batch_size",
    "sequence_length",
    "kernel_mode",
)


def main(arguments: Sequence[str]) -> int:
    """Make the table; returns the exit status: 0, or 1 with one message on stderr."""
    request = _parser().parse_args(arguments)
    try:
        _make(request)
    except InvalidSetting as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def layer_times(rows: Iterable[Row]) -> list[LayerTime]:
    """The lines of the table: per layer its dense time, then a time for each sparsity, ascending.

    A level is the sparsity that the row aimed at: the same one gives the same mask again. Its time is that of the kernel
    which the row's run chose, dense where that was faster. Where several rows timed the same, the (lower) median counts.

    Args:
        rows: that `unusable` has nothing against and that agree in all of SAME.
    """
    found: dict[str, dict[float, list[_Measured]]] = {}
    for row in rows:
        for layer, entry in row.kernels.kernel_per_layer.items():
            dense = next((name for name in DENSE_KERNELS if name in entry["candidates"]), None)
            if dense is None:
                raise InvalidSetting("results", row.identity.run_id, f"holds no dense time of layer {layer}")
            levels = found.setdefault(layer, {})
            levels.setdefault(0.0, []).append(_Measured(entry["candidates"][dense], dense, entry, row))
            chosen = _Measured(entry["latency_us"], entry["chosen"], entry, row)
            levels.setdefault(row.sparsity.sparsity_target, []).append(chosen)
    return [
        median_low(measured).line(layer, level)
        for layer, levels in found.items()
        for level, measured in sorted(levels.items())
    ]


def unusable(row: Row) -> str | None:
    """Why a row gives no layer times; None where it does."""
    if row.speed.latency_device == "cpu":
        return "measured on a CPU, where layers run a reference and are not timed one by one; use measure.device=cuda"
    if not row.kernels.kernel_per_layer:
        return f"holds no layer times (pattern={row.choice.pattern}, kernel={row.choice.kernel_mode})"
    if row.choice.allocation != "per_layer":
        return f"allocation={row.choice.allocation}: layers have sparsities of their own; use allocation=per_layer"
    untimed = [name for name, entry in row.kernels.kernel_per_layer.items() if not entry.get("latency_us")]
    return f"holds no time of layer {untimed[0]}" if untimed else None


@dataclass(frozen=True)
class _Measured:
    """One time of one layer, and the row that it is from."""

    latency_us: float
    kernel: str
    entry: dict[str, Any]
    row: Row

    def __lt__(self, other: "_Measured") -> bool:
        return self.latency_us < other.latency_us

    def line(self, layer: str, level: float) -> LayerTime:
        granularity = self.row.choice.pattern_parameters.get("granularity", "")
        sides = {side: str(self.entry.get(side, "")) for side in ("m", "k", "n")}
        return LayerTime(
            layer,
            level,
            self.latency_us,
            self.kernel,
            **sides,
            dtype=self.row.speed.dtype or "",
            device=self.row.identity.gpu or "",
            pattern=self.row.choice.pattern,
            granularity=str(granularity),
        )


def _make(request: argparse.Namespace) -> None:
    reading = read_rows([Path(path) for path in request.results])
    for problem in reading.problems:
        print(f"left out: {problem}", file=sys.stderr)
    rows = [row for row in reading.rows if all(_agrees(row, *filter_text(text)) for text in request.only)]
    usable = []
    for row in rows:
        if (why := unusable(row)) is None:
            usable.append(row)
        else:
            print(f"left out: run {row.identity.run_id}: {why}", file=sys.stderr)
    if not usable:
        why = f"no row gives layer times, of {len(reading.rows)} read"
        raise InvalidSetting("results", " ".join(request.results), why)
    _refuse_mixture(usable)
    out = Path(request.out)
    try:
        write_table(out, layer_times(usable))
    except OSError as error:
        raise InvalidSetting("out", out, f"cannot be written: {error}") from None
    _show(out)


def filter_text(text: str) -> tuple[str, str]:
    """LEAF=VALUE of --only, parted.

    Raises:
        InvalidSetting: no such leaf.
    """
    leaf, equals, value = text.partition("=")
    names = [entry.name for entry in leaves()]
    if not equals or leaf not in names:
        raise InvalidSetting("--only", text, f"is LEAF=VALUE with a leaf of the row; {', '.join(SAME)} are useful here")
    return leaf, value


def _text(row: Row, leaf: str) -> str:
    value = row.leaf(leaf)
    return json.dumps(value, sort_keys=True) if isinstance(value, dict) else str(value)


def _agrees(row: Row, leaf: str, value: str) -> bool:
    return _text(row, leaf) == value


def _refuse_mixture(rows: Sequence[Row]) -> None:
    """Raise InvalidSetting where the rows differ in what times depend on."""
    for leaf in SAME:
        values = sorted({_text(row, leaf) for row in rows})
        if len(values) > 1:
            raise InvalidSetting(
                "results", leaf, f"rows differ: {', '.join(values)}; choose one with --only '{leaf}={values[0]}'"
            )


def _show(out: Path) -> None:
    """What the table allows."""
    times = read_table(str(out)).times
    dense = sum(levels[0.0] for levels in times.values())
    fastest = sum(min(levels.values()) for levels in times.values())
    print(f"{out}: {len(times)} layers, dense together {dense:.1f} us")
    for level in sorted({level for levels in times.values() for level in levels} - {0.0}):
        together = sum(levels.get(level, levels[0.0]) for levels in times.values())
        print(f"  every layer at sparsity {level:g}: {dense / together:.3f}x")
    print(f"  every layer at its fastest: {dense / fastest:.3f}x, the largest allocation.speedup")
    print(f"python run.py allocation=latency_aware allocation.table={out} allocation.speedup=...")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m sparsefront.report.latency_table",
        description="Collect per-layer times from the rows of a sweep over sparsities into a table for "
        "allocation=latency_aware. The rows come from a GPU, with allocation=per_layer.",
    )
    parser.add_argument("results", nargs="+", help="folders (searched for row.json), CSV files or row.json files")
    parser.add_argument("-o", "--out", required=True, metavar="FILE", help="the table, a CSV file")
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="LEAF=VALUE",
        help="keep only rows with this value, such as pattern=n_m or batch_size=32; may be given several times",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
