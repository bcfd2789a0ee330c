"""From the results of a sweep to the table of layer times that allocation=latency_aware reads.

python -m sparsefront.report.latency_table results/SWEEP -o table.csv [--only FIELD=VALUE ...]
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
from sparsefront.counted import counted
from sparsefront.errors import InvalidSetting
from sparsefront.inference.dense_kernels import DENSE_KERNELS
from sparsefront.report.result import Result, result_fields
from sparsefront.report.store import read_results
from sparsefront.standard_output import ending_with_its_reader

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


@ending_with_its_reader()
def main(arguments: Sequence[str]) -> int:
    """Make the table; returns the exit status: 0, or 1 with one message on stderr."""
    request = _parser().parse_args(arguments)
    try:
        _make(request)
    except InvalidSetting as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def layer_times(results: Iterable[Result]) -> list[LayerTime]:
    """The lines of the table: per layer its dense time, then a time for each sparsity, ascending.

    A level is the sparsity that the result aimed at: the same one gives the same mask again. Its time is that of the kernel
    which the result's run chose, dense where that was faster. Where several results timed the same, the (lower) median counts.

    Args:
        results: that `unusable` has nothing against and that agree in all of SAME.
    """
    found: dict[str, dict[float, list[_Measured]]] = {}
    for result in results:
        for layer, entry in result.kernels.kernel_per_layer.items():
            dense = next((name for name in DENSE_KERNELS if name in entry["candidates"]), None)
            if dense is None:
                raise InvalidSetting("results", result.identity.run_id, f"has no dense time of layer {layer}")
            levels = found.setdefault(layer, {})
            levels.setdefault(0.0, []).append(_Measured(entry["candidates"][dense], dense, entry, result))
            chosen = _Measured(entry["latency_us"], entry["chosen"], entry, result)
            levels.setdefault(result.sparsity.sparsity_target, []).append(chosen)
    return [
        median_low(measured).line(layer, level)
        for layer, levels in found.items()
        for level, measured in sorted(levels.items())
    ]


def unusable(result: Result) -> str | None:
    """Why a result gives no layer times; None where it does."""
    if result.speed.latency_device == "cpu":
        return "measured on a CPU, where layers run a reference and are not timed one by one; use measure.device=cuda"
    if not result.kernels.kernel_per_layer:
        return f"has no layer times (pattern={result.choice.pattern}, kernel={result.choice.kernel_mode})"
    if result.choice.allocation != "per_layer":
        return f"allocation={result.choice.allocation}: layers have sparsities of their own; use allocation=per_layer"
    untimed = [name for name, entry in result.kernels.kernel_per_layer.items() if not entry.get("latency_us")]
    return f"has no time of layer {untimed[0]}" if untimed else None


@dataclass(frozen=True)
class _Measured:
    """One time of one layer, and the result that it is from."""

    latency_us: float
    kernel: str
    entry: dict[str, Any]
    result: Result

    def __lt__(self, other: "_Measured") -> bool:
        return self.latency_us < other.latency_us

    def line(self, layer: str, level: float) -> LayerTime:
        granularity = self.result.choice.pattern_parameters.get("granularity", "")
        sides = {side: str(self.entry.get(side, "")) for side in ("m", "k", "n")}
        return LayerTime(
            layer,
            level,
            self.latency_us,
            self.kernel,
            **sides,
            dtype=self.result.speed.dtype or "",
            device=self.result.identity.gpu or "",
            pattern=self.result.choice.pattern,
            granularity=str(granularity),
        )


def _make(request: argparse.Namespace) -> None:
    reading = read_results([Path(path) for path in request.results])
    for problem in reading.problems:
        print(f"left out: {problem}", file=sys.stderr)
    results = [
        result for result in reading.results if all(_agrees(result, *filter_text(text)) for text in request.only)
    ]
    usable = []
    for result in results:
        if (why := unusable(result)) is None:
            usable.append(result)
        else:
            print(f"left out: run {result.identity.run_id}: {why}", file=sys.stderr)
    if not usable:
        why = f"no result gives layer times, of {len(reading.results)} read"
        raise InvalidSetting("results", " ".join(request.results), why)
    _require_same_conditions(usable)
    out = Path(request.out)
    try:
        write_table(out, layer_times(usable))
    except OSError as error:
        raise InvalidSetting("out", out, f"cannot be written: {error}") from None
    _show(out)


def filter_text(text: str) -> tuple[str, str]:
    """FIELD=VALUE of --only, parted.

    Raises:
        InvalidSetting: no such field.
    """
    field, equals, value = text.partition("=")
    names = [entry.name for entry in result_fields()]
    if not equals or field not in names:
        raise InvalidSetting(
            "--only", text, f"is FIELD=VALUE with a field of the result; {', '.join(SAME)} are useful here"
        )
    return field, value


def _text(result: Result, field: str) -> str:
    value = result.value_of(field)
    return json.dumps(value, sort_keys=True) if isinstance(value, dict) else str(value)


def _agrees(result: Result, field: str, value: str) -> bool:
    return _text(result, field) == value


def _require_same_conditions(results: Sequence[Result]) -> None:
    """Raise InvalidSetting where the results differ in what times depend on."""
    for field in SAME:
        values = sorted({_text(result, field) for result in results})
        if len(values) > 1:
            raise InvalidSetting(
                "results", field, f"results differ: {', '.join(values)}; choose one with --only '{field}={values[0]}'"
            )


def _show(out: Path) -> None:
    """What the table allows."""
    times = read_table(str(out)).times
    dense = sum(levels[0.0] for levels in times.values())
    fastest = sum(min(levels.values()) for levels in times.values())
    print(f"{out}: {counted(len(times), 'layer')}, dense together {dense:.1f} us")
    for level in sorted({level for levels in times.values() for level in levels} - {0.0}):
        together = sum(levels.get(level, levels[0.0]) for levels in times.values())
        print(f"  every layer at sparsity {level:g}: {dense / together:.3f}x")
    print(f"  every layer at its fastest: {dense / fastest:.3f}x, the largest allocation.speedup")
    print(f"python run.py allocation=latency_aware allocation.table={out} allocation.speedup=...")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m sparsefront.report.latency_table",
        description="Collect per-layer times from the results of a sweep over sparsities into a table for "
        "allocation=latency_aware. The results come from a GPU, with allocation=per_layer.",
    )
    parser.add_argument("results", nargs="+", help="folders (searched for row.json), CSV files or row.json files")
    parser.add_argument("-o", "--out", required=True, metavar="FILE", help="the table, a CSV file")
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="FIELD=VALUE",
        help="keep only results with this value, such as pattern=n_m or batch_size=32; may be given several times",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
