"""Latency at several sizes of the same weights: the first is the row's, the others its curve."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hydra.core.hydra_config import HydraConfig

from sparsefront.config.validate import validate
from sparsefront.errors import InvalidSetting
from sparsefront.inference.swap_report import LayerSwap, SwapReport
from sparsefront.results.latency_table import curve_lines, curve_points, won_batch_sizes
from sparsefront.stages import measure
from sparsefront.stages.bench import EvalContext

ON_CPU = ("trainer=cpu", "measure.device=cpu")
SMALL = (*ON_CPU, "model.dim=64", "model.depth=1")
LATENCIES = {f"latency_{side}{part}_ms" for side in ("dense", "sparse") for part in ("", "_p20", "_p80")}


def folder() -> Path:
    return Path(HydraConfig.get().runtime.output_dir)


def texts(path: Path) -> list[str]:
    rows = [
        f"the film is {word} and {n} minutes long\t{label}"
        for n in range(20)
        for word, label in (("good", 1), ("bad", 0))
    ]
    (path / "SST-2").mkdir(parents=True)
    for split in ("train", "dev"):
        (path / "SST-2" / f"{split}.tsv").write_text("\n".join(["sentence\tlabel", *rows]) + "\n")
    return ["model=bert", "model.size=tiny", "dataset=glue", f"dataset.path={path}", "recipe.batch_size=4"]


def test_every_batch_size_is_swapped_and_timed_anew(full_run, monkeypatch):
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


def test_run_without_sparse_layers_has_speedup_one(run, tmp_path, monkeypatch):
    real = measure.swap
    without = lambda *given, **more: real(*given, **more | {"kernel": "none", "packed": None})  # noqa: E731
    monkeypatch.setattr(measure, "swap", without)
    speed = run(
        *ON_CPU, *texts(tmp_path / "data"), "measure.batch_size=[2,4]", "measure.lengths=dataset", "measure.samples=5"
    ).speed
    assert speed.latency_kernel == "dense" and speed.latency_sparse_ms == speed.latency_dense_ms
    assert (speed.speedup_dataset, speed.speedup_dataset_low, speed.speedup_dataset_high) == (1.0, 1.0, 1.0)
    for entry in (vars(speed), *speed.curve, *speed.dataset_lengths):
        assert [entry[name] for name in ("speedup", "speedup_low", "speedup_high")] == [1.0, 1.0, 1.0]


def test_lengths_and_batch_sizes_are_combined(run, tmp_path):
    row = run(*ON_CPU, *texts(tmp_path / "data"), "measure.batch_size=[2,4]", "measure.sequence_length=[16,24]")
    assert (row.speed.batch_size, row.speed.sequence_length) == (2, 16)
    found = [(point["batch_size"], point["sequence_length"]) for point in row.speed.curve]
    assert found == [(4, 16), (2, 24), (4, 24)]
    assert set(won_batch_sizes(row)) == {16, 24}
    assert "dense 4x24" in json.loads((folder() / "samples.json").read_text())


def test_a_dense_run_has_a_dense_curve(run):
    row = run(*SMALL, "pattern=dense", "measure.batch_size=[2,1]")
    (point,) = row.speed.curve
    assert point["latency_dense_ms"] > 0 and "latency_sparse_ms" not in point
    assert [line["sparse, ms"] for line in curve_lines(row)] == ["–", "–"]
    assert won_batch_sizes(row) == {None: []}


def test_points_share_the_search_for_dense(run, monkeypatch):
    timed, real = [], measure.benchmark
    monkeypatch.setattr(measure, "benchmark", lambda *given, **more: timed.append(real(*given, **more)) or timed[-1])
    for sparsity in (0.5, 0.75):
        run(*SMALL, f"sparsity={sparsity}")
    assert [one.timed.dense.execution.known for one in timed] == [False, True]
    assert all(len(one.timed.samples_ms["dense"]) == len(one.timed.samples_ms["sparse"]) for one in timed), (
        "timed at every point"
    )


def test_a_size_without_memory_says_so(run, monkeypatch):
    real = EvalContext.at

    def at(self, batch_size, sequence_length):
        if batch_size == 64:
            raise torch.OutOfMemoryError("too much")
        return real(self, batch_size, sequence_length)

    monkeypatch.setattr(EvalContext, "at", at)
    row = run(*SMALL, "measure.batch_size=[2,64,1]")
    assert row.speed.curve[0] == {"batch_size": 64, "sequence_length": None, "not_measured": "out of memory"}
    assert row.speed.curve[1]["latency_sparse_ms"] > 0
    assert curve_lines(row)[-1]["kernels, or not measured because"] == "out of memory"


def test_one_size_has_no_curve(full_run):
    row = full_run(*SMALL)
    assert row.speed.curve == [] and curve_points(row) == []
    assert row.speed.dense_variant in {name.removeprefix("dense/") for name in row.speed.variant_medians_ms}
    assert row.speed.variant_medians_ms.keys() >= {"dense/eager", "sparse/eager", "dense/eager+patch_product"}
    assert any(name.startswith("dense/eager+") and "fused_qkv" in name for name in row.speed.variant_medians_ms)
    assert row.speed.variants_not_timed["dense/cuda_graph"] == "needs a CUDA device"
    assert row.speed.execution_mode_dense == "eager"


def test_the_fused_graph_is_a_candidate_of_the_stage(full_run):
    row = full_run(*SMALL, "measure.batch_size=[2,3]")
    assert row.speed.fused_dense_latency_ms > 0 and row.speed.curve[0]["fused_dense_latency_ms"] > 0
    assert "dense/eager+fused_graph" in row.speed.variant_medians_ms
    assert row.speed.variants_not_timed["sparse/fused_graph"].startswith("with kernels, blocks are rewritten")


@pytest.mark.parametrize("kernel", ["auto", "none"])
def test_bytes_on_the_device(run, kernel):
    size = run(*SMALL, f"kernel={kernel}").size
    assert size.resident_bytes_dense >= size.weight_bytes_dense
    if kernel == "auto":
        assert size.resident_bytes_sparse < size.resident_bytes_dense
        assert size.dense_bytes_per_layer == {}
    else:
        assert size.resident_bytes_sparse is None


def test_a_pruned_layer_that_runs_dense_says_why():
    layers = {
        "slow": LayerSwap(kernel="dense_linear", family="dense", density=0.25, weight_bytes=64),
        "fast": LayerSwap(kernel="gathered_sm90", family="gathered", density=0.25, weight_bytes=16),
    }
    report = SwapReport(layers, {"slow": "dense_linear is faster", "head": "not pruned"}, 0.3, 0.3)
    found = measure._layers(report, SimpleNamespace(device=torch.device("cpu"), dtype=torch.float32))
    assert found.keys() == layers.keys()
    assert found["slow"]["why_dense"] == "dense_linear is faster" and "why_dense" not in found["fast"]


def test_where_nothing_is_timed_the_result_holds_the_accuracy_alone(run, monkeypatch):
    monkeypatch.setattr(measure, "time_alone", None)
    untimed = ("kernel=none", "measure.latency=false", "control=dense_continued")
    row = run(*SMALL, *untimed)
    assert row.speed.latency_dense_ms is None and row.speed.latency_device is None and row.speed.curve == []
    assert None not in (row.quality.masked, row.quality.val_masked, row.quality.dense_continued)
    assert row.speed.dtype == "fp32" and row.size.weight_bytes_dense > 0
    assert json.loads((folder() / "samples.json").read_text()) == {}
    assert run(*SMALL, "pattern=dense", *untimed).quality.dense == row.quality.dense


def test_kernels_are_not_chosen_where_nothing_is_timed(composed):
    with pytest.raises(
        InvalidSetting, match="^measure.latency=False: kernels are chosen by timing them: add kernel=none"
    ):
        validate(composed(*SMALL, "measure.latency=false"))
