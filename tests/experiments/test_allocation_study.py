"""The study of allocations in experiments/protocol: its points, its lines, and one point on digits."""

import time
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path

import pytest

from sparsefront.allocation.global_threshold import GlobalThreshold
from sparsefront.allocation.per_layer import PerLayer
from sparsefront.artifacts.csv_lines import read_lines

FOLDER = Path(__file__).resolve().parents[2] / "experiments" / "protocol"
NAMES = ("allocation_points", "allocation_study", "allocation_summary")
RESULT = {
    "metric_name": "accuracy",
    "val_samples": 144,
    "test_samples": 359,
    "sparsity_achieved": 0.75,
    "layers": 24,
    "layers_below": 0,
    "least_density": 0.2,
    "seconds": 1.0,
    "device": "cpu",
    "torch": "2",
    "commit": None,
    "date": "2026-11-22",
}


class Inline:
    """A pool that does everything at once."""

    def submit(self, task, *arguments):
        future = Future()
        future.set_result(task(*arguments))
        return future


def test_the_defaults_of_the_patterns_come_first(modules, composed):
    """What is called the default is what `run.py` takes."""
    points, _, _ = modules.values()
    for pattern, ((allocation, aggregate), *_) in points.VARIANTS.items():
        config = composed(f"pattern={pattern}")
        assert config.pattern.aggregate == aggregate and config.allocation._target_.endswith("PerLayer")
        assert allocation == "per_layer"


def test_a_point_is_the_experiment_of_its_overrides(modules, tmp_path):
    points, _, _ = modules.values()
    overrides = [f"cache_dir={tmp_path}", "trainer=cpu", "measure.device=cpu"]
    point = points.Point("digits", "block_wise", 0.9, "min_density", "l2", 2)
    experiment = points.experiment_of(point, overrides)
    assert experiment.allocation == GlobalThreshold(min_density_share=0.2) and experiment.seed == 2
    point = points.Point("digits", "tile_wise", 0.5, "per_layer", "mean", 0)
    experiment = points.experiment_of(point, overrides)
    assert experiment.allocation == PerLayer() and experiment.pattern.aggregate == "mean"
    assert experiment.sparsity == 0.5 and not experiment.swaps


def test_a_study_goes_on_where_it_was_and_trains_dense_first(modules, tmp_path, monkeypatch):
    points, study, summary = modules.values()
    out, done = tmp_path / "rows.csv", []

    def finish(point, overrides):
        done.append(point)
        return points.Result(val_metric=0.9, test_metric=0.8, **RESULT)

    monkeypatch.setattr(points, "finish", finish)
    wanted = list(points.all_points("digits", patterns=["vector_wise"], sparsities=[0.75], seeds=[0, 1]))
    run = {"pool": Inline(), "out": out, "overrides": {"digits": []}, "workers": 1}
    study.run(wanted[:3], ends_at=time.monotonic() + 60, **run)
    assert done == wanted[:3] and done[0].pattern == "dense"
    study.run(wanted, ends_at=time.monotonic() - 1, **run)
    assert len(done) == 3, "out of time"
    study.run(wanted, ends_at=time.monotonic() + 60, **run)
    assert len(done) == len(wanted) == 10 and set(done) == set(wanted) and done[3].pattern == "dense"
    assert {points.point_of(row) for row in read_lines(out)} == set(wanted)
    text = "\n".join(summary.report(read_lines(out)))
    assert "| vector_wise | 0.75 | global_threshold | l2 | 2 | 90.00 | +0.00 ± 0.00 |" in text
    assert "digits: 110 of 120 points are missing (seeds 0, 1, 2)" in text
    assert "cifar10: 14 of 14 points are missing (seeds 0)" in text


def test_differences_are_taken_seed_by_seed(modules):
    points, _, summary = modules.values()
    rows = {}
    for seed, (first, other) in enumerate([(0.90, 0.88), (0.80, 0.80)]):
        for variant, value in zip(points.VARIANTS["block_wise"][:2], (first, other), strict=True):
            point = points.Point("digits", "block_wise", 0.9, *variant, seed)
            rows[point] = {"val_metric": str(value), "test_metric": "0.5", "layers_below": str(seed)}
    *_, line = summary.table("digits", rows)
    assert line == "| block_wise | 0.9 | global_threshold | l2 | 2 | 84.00 | -1.00 ± 1.00 | 50.00 | +0.00 ± 0.00 | 1 |"


def test_one_point_from_dense_to_a_line(modules, tmp_path):
    points, _, _ = modules.values()
    overrides = [f"cache_dir={tmp_path}", "trainer=cpu", "measure.device=cpu", "debug=tiny", "model.depth=1"]
    point = points.Point("digits", "tile_wise", 0.75, "global_threshold", "rms", 0)
    result = points.finish(point, overrides)
    assert result.sparsity_achieved == pytest.approx(0.75, abs=0.02) and result.layers == 6
    assert 0 <= result.val_metric <= 1 and result.val_samples > 0
    points.append_row(tmp_path / "rows.csv", point, result)
    points.append_row(tmp_path / "rows.csv", replace(point, seed=1), result)
    assert points.point_of(read_lines(tmp_path / "rows.csv")[1]) == replace(point, seed=1)
