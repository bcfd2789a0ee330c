"""A study made up for tests: its lines, its queue, and a pool that does everything at once."""

import shlex
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
FOLDER = ROOT / "experiments" / "studies"
STUDIES = sorted(path.parent.name for path in FOLDER.parent.glob("*/study.yaml"))
MEASURED = [name for name in STUDIES if (FOLDER.parent / name / "points.csv").exists()]
OF_A_BATCH = {"batch_size": 8, "sequence_length": 128}
ON_CPU = ("trainer=cpu", "measure.device=cpu")


def line_of(masked: float, **more: object) -> dict:
    return {
        "pattern": "element_wise",
        "metric_name": "accuracy",
        "sparsity_target": 0.5,
        "sparsity_achieved": 0.5,
        "val_dense": 0.9,
        "dense": 0.88,
        "dense_continued": 0.89,
        "val_dense_continued": 0.895,
        "val_masked": masked,
        "masked": masked,
        "recovery_steps": 3,
        "torch_version": "2",
        "commit": "0123456789",
        "time": "2026-11-24T10:00:00+00:00",
        "dense_weights_sha256": "a",
        **more,
    }


def queue_of(modules, study, tmp_path, **more):
    settings = {"kernels": ["none"], "shared": {study.networks[0]: []}, "out": tmp_path, "results": tmp_path / "runs"}
    return modules["study"].queue_of([study], list(modules["definition"].points(study)), **settings | more)


def lines_of(modules, study, tmp_path) -> list:
    return (tmp_path / study.name / "points.csv").read_text().splitlines()[1:]


def point_of(modules, study, row, seed):
    return next(
        point
        for point in modules["definition"].every_point(study)
        if (point.row, point.column, point.seed) == (row, "50 %", seed)
    )


def filled(modules, study, tmp_path) -> Path:
    rows, definition = modules["cells"], modules["definition"]
    path = tmp_path / "points.csv"
    for point in definition.points(study):
        if point.row == "BW":
            found = {"unsupported": "no layer fits"} if point.column == "75 %" else None
        elif point.row == "EW":
            found = line_of(0.885 if point.column == "50 %" else 0.7 + point.seed / 10)
        else:
            found = line_of(0.8)
        if found is not None:
            rows.append_line(path, point, "none", found, overrides=shlex.join(point.overrides))
        if (point.row, point.column, point.seed) == ("EW", "50 %", 0):
            timed = line_of(
                0.885, speedup=0.8, speedup_low=0.7, speedup_high=0.9, gpu="H200", sparse=0.884, **OF_A_BATCH
            )
            rows.append_line(path, point, "auto", timed, overrides=shlex.join(point.overrides))
            dense = definition.dense_point(study, point)
            rows.append_line(
                path, dense, "none", line_of(0.0, evaluated_samples=9), overrides=shlex.join(dense.overrides)
            )
    return path
