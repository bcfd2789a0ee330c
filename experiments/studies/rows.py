"""The lines of a study: one per finished point, added as soon as it is finished."""

import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from itertools import takewhile
from pathlib import Path
from typing import Any

from experiments.studies.definition import Point, Study, every_point
from sparsefront.results import store

IDENTITY = tuple(field.name for field in fields(Point) if field.compare)
# of the result, by the names that it has in every record of the program
FACTS = (
    "pattern",
    "granularity",
    "n_of_m",
    "recovery",
    "schedule",
    "sparsity_target",
    "sparsity_achieved",
    "metric_name",
    "val_dense",
    "val_dense_continued",
    "val_masked",
    "val_sparse",
    "dense",
    "dense_continued",
    "masked",
    "sparse",
    "dense_standard_error",
    "masked_standard_error",
    "evaluated_samples",
    "val_evaluated_samples",
    "dense_steps",
    "recovery_steps",
    "latency_dense_ms",
    "latency_sparse_ms",
    "speedup",
    "speedup_low",
    "speedup_high",
    "sparse_flops_share",
    "batch_size",
    "sequence_length",
    "dtype",
    "gpu",
    "processor",
    "torch_version",
    "commit",
    "time",
    "dense_weights_sha256",
    "run_id",
)
# overrides of all points, which stand behind a point's own
QUIET = (
    "logger=none",
    "trainer.progress_bar=false",
    "trainer.checkpoint=false",
    "report.html=false",
    "report.plot=false",
)
KERNEL, SECONDS, UNSUPPORTED, OVERRIDES = "kernel", "seconds", "unsupported", "overrides"
COLUMNS = (*IDENTITY, KERNEL, UNSUPPORTED, *FACTS, SECONDS, OVERRIDES)
FILE = "points.csv"

Line = dict[str, str]
Key = tuple[Point, str]  # a point, and the kernel option that it was run with


def read_lines(path: Path) -> dict[Key, Line]:
    """The lines of earlier calls; none where there is no file. Of a point that was run again the last one counts."""
    return {key: lines[-1] for key, lines in _all_lines(path).items()}


def current_lines(study: Study, path: Path) -> dict[Key, Line]:
    """The lines that were measured as the study says now; what it says of the trainer alone makes no other point. Of a point that
    was run again the last one counts.
    """
    return {key: lines[-1] for key, lines in _current_lines(study, path).items()}


def repeated_lines(study: Study, path: Path) -> dict[Key, list[Line]]:
    """All such lines of the points that were run again, the one that counts last."""
    return {key: lines for key, lines in _current_lines(study, path).items() if len(lines) > 1}


def _current_lines(study: Study, path: Path) -> dict[Key, list[Line]]:
    asked = {point: _settings(point.overrides) for point in every_point(study)}
    found = {}
    for key, lines in _all_lines(path).items():
        if current := [line for line in lines if _settings(_own_overrides(line)) == asked.get(key[0])]:
            found[key] = current
    return found


def _all_lines(path: Path) -> dict[Key, list[Line]]:
    lines: dict[Key, list[Line]] = {}
    for line in store.read_lines(path):
        lines.setdefault((point_of(line), line[KERNEL]), []).append(line)
    return lines


def _own_overrides(line: Line) -> Iterator[str]:
    """Those of the point itself, which stand in front."""
    return takewhile(lambda text: text != QUIET[0], shlex.split(line[OVERRIDES]))


def _settings(overrides: Iterable[str]) -> set[str]:
    return {text for text in overrides if not text.startswith("trainer.")}


def append_line(path: Path, point: Point, kernel: str, found: Mapping[str, Any], *, overrides: str) -> None:
    """Add one line; the first makes the file, and its folder.

    Args:
        found: facts by name, `seconds`, or `unsupported` with the reason; what is absent stays empty.
        overrides: of run.py, as one text: those of the point, then `QUIET` and whatever else the call gave.
    """
    line = {name: getattr(point, name) for name in IDENTITY} | {KERNEL: kernel, OVERRIDES: overrides} | dict(found)
    store.append_line(path, {name: _text(line.get(name)) for name in COLUMNS})


def point_of(line: Line) -> Point:
    """The point that a line is about."""
    return Point(**{name: int(line[name]) if name == "seed" else line[name] for name in IDENTITY})


def number(line: Line | None, name: str) -> float | None:
    """A cell as a number; None where nothing was measured."""
    return None if line is None or not line[name] else float(line[name])


def _text(value: Any) -> Any:
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else value
