"""The study of experiments/end_to_end on tiny networks: rows, refusals, the ablation's lines and the tables."""

import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from experiments.harness.rows import read_lines
from sparsefront.errors import InvalidSetting
from sparsefront.measure.settings import Measure

FOLDER = Path(__file__).resolve().parents[2] / "experiments" / "end_to_end"
CPU = Measure(device="cpu", execution_modes=["eager"], variants=["fused_qkv", "fused_graph"], samples=5, warmup=0)
TINY = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}


@pytest.fixture
def options(modules, tmp_path, monkeypatch):
    # after every line; what it frees is a GPU's memory, and it looks through all that the tests have imported
    monkeypatch.setattr(modules["study"], "gc", SimpleNamespace(collect=lambda: None))
    return modules["study"].Options(tmp_path / "rows.csv", CPU, timed=False, tiny=True)


@pytest.fixture
def timed(options):
    """Timed on a CPU, behind the check that wants a GPU."""
    object.__setattr__(options, "timed", True)
    return options


def point_of(modules, model="bert_base", pattern="tile_wise", granularity=16, sparsity=0.75, **more):
    points = modules["points"]
    setting = points.Setting(pattern, granularity, sparsity, group_m=4 if pattern == "n_m" else None)
    batch, length = (3, 24) if model.startswith("bert") else (3, None)
    return points.Point(model, batch, length, **{"dtype": "fp32", "setting": setting} | more)


def test_rows_are_chosen_by_their_values(modules):
    study, points = modules["study"], modules["points"]
    everything = points.all_points()
    assert study.select(everything, ["targets"]) == [target.point for target in points.TARGETS]
    some = study.select(everything, ["bert_large,32x384,fp16,tile_wise,128,0.75,auto"])
    assert [(p.setting.sparsity, p.batch, p.kernel_mode) for p in some] == [(0.75, 32, "auto")]
    with pytest.raises(InvalidSetting, match="fits no row"):
        study.select(everything, ["gpt"])


@pytest.mark.parametrize(
    ("model", "pattern", "granularity"),
    [
        ("bert_base", "tile_wise", 16),
        ("vit_l_16", "vector_wise", 32),
        ("bert_base", "block_wise", 64),
        ("vit_l_16", "n_m", None),
    ],
)
def test_dry_run_swaps_every_layer(modules, options, caplog, model, pattern, granularity):
    with caplog.at_level("INFO"):
        modules["study"].measure(point_of(modules, model, pattern, granularity, 0.5), options)
    assert "share 1.000" in caplog.text
    assert "2 norms" in caplog.text, "the blocks were not rewritten"
    assert not options.file.exists(), "a dry run writes nothing"


def test_a_convnet_is_swapped_too(modules, options, caplog):
    """Convolutions of every kind, 1x1 and 3x3 in blocks within a tap; on a CPU by references."""
    point = point_of(modules, "resnet50", "block_wise", 64, 0.5)
    with caplog.at_level("INFO"):
        modules["study"].measure(point, options)
    assert "'blocked_reference': 15" in caplog.text, "the two that keep all of their blocks are dense"
    pruned = options.prepare(point)
    three = pruned.masks["layer2.0.conv2"]
    assert three.shape == (128, 128, 3, 3) and min(pruned.densities) > 0
    blocks = three.permute(0, 2, 3, 1).reshape(2, 64, 18, 64).permute(0, 2, 1, 3).flatten(2)
    assert torch.equal(blocks.any(2), blocks.all(2))


def test_errors_of_wrong_outputs(modules, options):
    pruned = options.prepare(point_of(modules))
    assert pruned.errors().ratio == pytest.approx(1.0)
    pruned.net.get_submodule(list(pruned.masks)[-1]).weight.data.zero_()
    assert pruned.errors().ratio > 1e3


def test_a_cpu_gives_no_latencies(modules, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(InvalidSetting, match="latencies of a GPU"):
        modules["study"].Options(tmp_path / "rows.csv", CPU)
    monkeypatch.setattr(sys, "argv", ["study.py", "--out", str(tmp_path / "rows.csv")])
    with pytest.raises(SystemExit, match="latencies of a GPU"):
        modules["study"].main()
    assert list(tmp_path.iterdir()) == []


def test_the_whole_way_of_a_row(modules, timed):
    """All that a GPU does but graphs and profiles, by clocks of a CPU."""
    study, point = modules["study"], point_of(modules)
    assert study.run(study.measure, [point, point], timed, float("inf")) == 0
    rows = read_lines(timed.file)
    assert list(rows[0]) == study.COLUMNS == list(read_lines(FOLDER / "h200.csv")[0])
    assert [row["kernel_mode"] for row in rows] == ["auto", "sparse"], "forcing would choose the same kernels"
    for row in rows:
        assert float(row["latency_ms"]) > 0 and float(row["fused_dense_latency_ms"]) > 0
        assert row["dense_variant"].startswith("eager") and row["sparse_variant"].startswith("eager")
        assert float(row["speedup_low"]) <= float(row["speedup"]) <= float(row["speedup_high"])
        assert row["distribution"] == "free" and row["gpu"] == "" and float(row["sparse_flops_share"]) == 1
        assert row["kernels"] == "gathered_reference:12" and float(row["sparsity_achieved"]) == pytest.approx(
            0.75, 0.02
        )
    assert timed.has(point) and not timed.has(replace(point, pattern_settings="whole_tiles=true"))


def test_network_without_sparse_layers(modules, timed, monkeypatch):
    """It is named after the dense version that runs."""
    swap = modules["study"].sf.swap
    monkeypatch.setattr(modules["study"].sf, "swap", lambda *given, **more: swap(*given, **more | {"kernel": "none"}))
    modules["study"].measure(point_of(modules), timed)
    (row,) = read_lines(timed.file)
    assert row["sparse_variant"] == f"dense: {row['dense_variant']}" and float(row["speedup"]) == 1


def test_one_failed_row_stops_no_other(modules, timed):
    study, first, second = modules["study"], point_of(modules), point_of(modules, sparsity=0.5)
    seen = []

    def measure(point, options):
        seen.append(point)
        if point == first:
            raise torch.OutOfMemoryError("no memory")

    assert study.run(measure, [first, second], timed, float("inf")) == 1
    assert seen == [first, second]
    assert study.run(measure, [first], timed, 0.0) == 0 and len(seen) == 2, "the time was over"


@pytest.mark.parametrize("model", ["bert_base", "vit_b_16"])
def test_every_line_computes_the_same(modules, options, model, caplog):
    ablation, point = modules["ablation"], point_of(modules, model, kernel_mode="sparse")
    with caplog.at_level("INFO"):
        for line in ablation.LINES:
            ablation.measure(point, options, line)
    lines = [text for text in caplog.messages if "error ratio" in text]
    assert [line.name for line in ablation.LINES if not any(f" {line.name}: " in text for text in lines)] == []
    assert all(float(text.rpartition(" ")[2]) < 1.5 for text in lines)


def full_row(modules, target, **more):
    base = {name: "" for name in modules["study"].COLUMNS} | target.point.columns
    figures = {
        "speedup": "3.0",
        "speedup_low": "2.9",
        "speedup_high": "3.1",
        "latency_ms": "1",
        "dense_latency_ms": "3",
    }
    return base | figures | {"sparse_flops_share": "1", "min_layer_density": "0.5", "error_ratio": "1.0"} | more


def test_bar_needs_every_condition(modules):
    summary, targets = modules["summary"], modules["points"].TARGETS
    target = targets[1]
    assert summary.shortcomings(full_row(modules, target), target) == []
    low = {"speedup": "1.69", "sparse_flops_share": "0.4", "min_layer_density": "0.1", "error_ratio": "1.6"}
    for name, value in low.items():
        assert len(summary.shortcomings(full_row(modules, target, **{name: value}), target)) == 1, name
    rows = [full_row(modules, target), full_row(modules, targets[2], speedup="2.0")]
    table = "\n".join(summary.bars_table(rows))
    assert table.count("not measured") == len(targets) - 2
    assert "met, stretch too" in table and "short: 2.00 < 2.1" in table


def test_wins_and_crossovers(modules):
    summary, points = modules["summary"], modules["points"]
    setting = points.SETTINGS[0]

    def at(batch, low, high, **more):
        target = points.Target(points.Point("bert_base", batch, 128, "fp16", setting, "sparse"), 1.0)
        ends = {"speedup": str((low + high) / 2), "speedup_low": str(low), "speedup_high": str(high)}
        return full_row(modules, target, **ends, **more)

    rows = [at(8, 0.8, 0.9), at(32, 1.1, 1.2), at(128, 1.4, 1.5)]
    assert summary.crossover(rows, setting) == "32×128"
    assert summary.crossover([at(8, 0.8, 0.9)], setting) == "–"
    assert "| sparse | 2 | 0 | 1 | 0.85 |" in "\n".join(summary.wins_and_losses(rows))
    idle = [at(8, 1.1, 1.2, sparse_flops_share="0")]
    assert "| sparse | 0 | 1 | 0 |" in "\n".join(summary.wins_and_losses(idle)), "no win without sparse kernels"
    assert "0.85" in summary.tables(rows, [])


def test_a_network_through_the_library(modules, monkeypatch):
    """In two patterns; a CPU's rows name no GPU."""
    library = modules["library"]
    config = library.transformers.BertConfig(vocab_size=30, **TINY)
    ids = {"input_ids": torch.arange(24).reshape(2, 12), "use_cache": False}
    monkeypatch.setitem(library.NETWORKS, "tiny", lambda: (library.transformers.BertModel(config), ids))
    monkeypatch.setitem(library.POINTS, library.TILES, ("tile_wise", 0.5, {"granularity": 16}, "none"))
    rows = [library.measure("tiny", point, torch.device("cpu"), "auto", 5.0, CPU) for point in ("2:4", library.TILES)]
    assert [row["point"] for row in rows] == ["2:4", "tile_wise 75%"] and rows[0]["gpu"] == ""
    assert rows[0]["sparsity"] == 0.5 and rows[0]["blocks_rewritten"] == 1 and rows[0]["inputs"] == "2x12"
