"""Latency at several sizes of the same weights: the first is the row's, the others its curve."""

import json
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from tiny_files import write_glue

from sparsefront.stages import measure

ON_CPU = ("trainer=cpu", "measure.device=cpu")
SMALL = (*ON_CPU, "model.dim=64", "model.depth=1")
LATENCIES = {f"latency_{side}{part}_ms" for side in ("dense", "sparse") for part in ("", "_p20", "_p80")}


def folder() -> Path:
    return Path(HydraConfig.get().runtime.output_dir)


def test_every_batch_size_is_swapped(full_run, monkeypatch):
    reports = []
    real = measure.swap

    def swap(*arguments, **more):
        reports.append(real(*arguments, **more))
        return reports[-1]

    monkeypatch.setattr(measure, "swap", swap)
    row = full_run(*SMALL, "measure.batch_size=[3,1,5]")
    assert row.speed.batch_size == 3 and row.speed.latency_sparse_ms > 0
    assert [(point["batch_size"], point["sequence_length"]) for point in row.speed.curve] == [(1, None), (5, None)]
    rows_seen = [next(iter(report.problems.values())).problem.m for report in reports]
    assert rows_seen[1] * 3 == rows_seen[0] and rows_seen[2] * 3 == rows_seen[0] * 5
    for point in row.speed.curve:
        assert LATENCIES < point.keys() and all(point[name] > 0 for name in LATENCIES)
        assert point["speedup_low"] <= point["speedup"] <= point["speedup_high"]
        assert point["dense_variant"].startswith("eager") and point["fused_dense_latency_ms"] > 0
        assert point["sparse_flops_share"] == row.kernels.sparse_flops_share
        assert sum(point["kernels"].values()) == len(row.kernels.kernel_per_layer)
    samples = json.loads((folder() / "samples.json").read_text())
    expected = {"dense", "sparse", "dense 1", "sparse 1", "dense 5", "sparse 5"}
    assert expected <= samples.keys() <= expected | {"fused_dense", "fused_dense 1", "fused_dense 5"}
    page = (folder() / "report.html").read_text()
    assert "Latency over batch size" in page and "fastest dense version" in page


def test_run_without_sparse_layers(run, tmp_path, monkeypatch):
    real = measure.swap
    without = lambda *given, **more: real(*given, **more | {"kernel": "none", "packed": None})  # noqa: E731
    monkeypatch.setattr(measure, "swap", without)
    texts = ["model=bert", "model.size=tiny", "dataset=glue", f"dataset.path={write_glue(tmp_path / 'data', 'sst2')}"]
    quick = ["recipe.batch_size=4", "measure.batch_size=[2,4]", "measure.lengths=dataset", "measure.samples=5"]
    speed = run(*ON_CPU, *texts, *quick).speed
    assert speed.latency_kernel == "dense" and speed.latency_sparse_ms == speed.latency_dense_ms
    assert (speed.speedup_dataset, speed.speedup_dataset_low, speed.speedup_dataset_high) == (1.0, 1.0, 1.0)
    for entry in (vars(speed), *speed.curve, *speed.dataset_lengths):
        assert [entry[name] for name in ("speedup", "speedup_low", "speedup_high")] == [1.0, 1.0, 1.0]
