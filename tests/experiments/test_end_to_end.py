"""The study of experiments/end_to_end on tiny networks: rows, refusals, the ablation's lines and the tables."""

import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from experiments.harness.measure import Steps
from sparsefront.errors import InvalidSetting
from sparsefront.measure.settings import Measure

FOLDER = Path(__file__).resolve().parents[2] / "experiments" / "end_to_end"
CPU = Measure(device="cpu", execution_modes=["eager"], variants=[], samples=5, warmup=0)


@pytest.fixture
def session(modules, tmp_path, monkeypatch):
    # after every line; what it frees is a GPU's memory, and it looks through all that the tests have imported
    monkeypatch.setattr(modules["session"], "gc", SimpleNamespace(collect=lambda: None))
    options = modules["session"].Options(CPU, CPU, timed=False, tiny=True)
    return modules["session"].Session(modules["session"].Rows(tmp_path / "rows.csv"), options)


def point_of(modules, model="bert_base", pattern="tile_wise", granularity=16, sparsity=0.75, **more):
    points = modules["points"]
    setting = points.Setting(pattern, granularity, sparsity, group_m=4 if pattern == "n_m" else None)
    batch, length = (3, 24) if model.startswith("bert") else (3, None)
    return points.Point(model, batch, length, "fp16", setting, **more)


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
def test_dry_run_swaps_every_layer(modules, session, caplog, model, pattern, granularity):
    point = point_of(modules, model, pattern, granularity, 0.5)
    with caplog.at_level("INFO"):
        session.measure(point)
    assert "share 1.000" in caplog.text
    assert "2 norms" in caplog.text, "the blocks were not rewritten"
    assert not session.rows.file.exists(), "a dry run writes nothing"


def test_a_convnet_is_swapped_too(modules, session, caplog):
    """Convolutions of every kind, 1x1 and 3x3 in blocks within a tap; on a CPU by references."""
    with caplog.at_level("INFO"):
        session.measure(point_of(modules, "resnet50", "block_wise", 64, 0.5))
    assert "'blocked_reference': 15" in caplog.text, "the two that keep all of their blocks are dense"
    masks = session.masks(point_of(modules, "resnet50", "block_wise", 64, 0.5))
    three = masks.layers["layer2.0.conv2"]
    assert three.shape == (128, 9 * 128) and min(masks.densities.values()) > 0
    blocks = three.view(2, 64, 18, 64).permute(0, 2, 1, 3).flatten(2)
    assert torch.equal(blocks.any(2), blocks.all(2))


def test_wrong_outputs_are_no_row(modules, session):
    sparse, dense = modules["sparse"], session.dense(point_of(modules))
    masks = session.masks(point_of(modules))
    masked = sparse.masked_net(dense, masks)
    reference = sparse.Reference(dense, masked)
    assert reference.errors(masked).ratio == pytest.approx(1.0)
    net = sparse.masked_net(dense, masks)
    net.get_submodule(dense.network.prunable[-1]).weight.zero_()
    with pytest.raises(sparse.WrongOutputs):
        reference.errors(net)


def test_a_cpu_gives_no_latencies(modules, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(InvalidSetting, match="latencies of a GPU"):
        modules["session"].Session(modules["session"].Rows(tmp_path / "rows.csv"), modules["session"].Options(CPU, CPU))
    monkeypatch.setattr(sys, "argv", ["study.py", "--out", str(tmp_path / "rows.csv")])
    with pytest.raises(InvalidSetting, match="latencies of a GPU"):
        modules["study"].main()
    assert list(tmp_path.iterdir()) == []


def row(modules, session, point, dense_ms=2.0, sparse_ms=1.0, **more):
    """A line with samples that are made up."""
    choice = modules["sparse"].KernelChoice(point.kernel_mode)
    sparse = modules["sparse"].make_sparse(session.dense(point), session.masks(point), choice, None, Steps())
    timed = modules["session"].Timed([[dense_ms] * 5] * 3, [[sparse_ms] * 5] * 3, 0.6)
    return modules["session"].row_of(point, session.masks(point), sparse, timed, "cuda_graph", 1.5, 3.0) | more


def test_row_is_not_measured_again(modules, session):
    point, other = point_of(modules), point_of(modules, sparsity=0.5)
    made = row(modules, session, point)
    assert (made["speedup"], made["latency_ms"], made["dense_latency_ms"]) == ("2.0000", "1.0000", "2.0000")
    assert made["kernels"] == "gathered_reference:12" and float(made["sparse_flops_share"]) == 1
    session.rows.add(made)
    again = modules["session"].Rows(session.rows.file)
    assert again.has(point) and not again.has(other)
    assert not again.has(replace(point, pattern_settings="whole_tiles=true"))
    assert modules["study"].left_over([point, other], again) == [other]


def test_the_whole_way_of_a_row(modules, session, monkeypatch):
    """All that a GPU does but graphs: clocks of a CPU, behind the refusal."""
    measure = replace(CPU, variants=["fused_qkv", "fused_graph"])
    session.options = replace(session.options, dense=measure, sparse=replace(measure, variants=[]), timed=True)
    point = replace(point_of(modules), dtype="fp32")
    session.measure(point)
    rows = modules["session"].Rows(session.rows.file).rows
    assert [made["kernel_mode"] for made in rows] == ["auto", "sparse"], "forcing would choose the same kernels"
    for made in rows:
        assert float(made["latency_ms"]) > 0 and float(made["fused_dense_latency_ms"]) > 0
        assert made["dense_variant"].startswith("eager") and made["sparse_variant"] == "eager"
        assert float(made["speedup_low"]) <= float(made["speedup"]) <= float(made["speedup_high"])
        assert made["distribution"] == "free" and made["gpu"] == ""
    found, real = [], modules["dense"].find_execution
    monkeypatch.setattr(modules["dense"], "find_execution", lambda *given: found.append(real(*given)) or found[-1])
    other = replace(point, setting=replace(point.setting, sparsity=0.5))
    session._dense = None  # as in the next call of the program
    session.measure(other)
    assert len(modules["session"].Rows(session.rows.file).rows) == 4
    assert [one.known for one in found] == [True], "the dense version was not searched again"


def test_network_without_sparse_layers(modules, session, monkeypatch):
    sparse, point = modules["sparse"], point_of(modules)
    dense = replace(session.dense(point), call=lambda: "dense", variant="cuda_graph")
    masks = session.masks(point)
    _, report = sparse.swapped_net(dense, sparse.masked_net(dense, masks), masks, sparse.KernelChoice("none"))
    assert report.sparse_flops_share == 0
    monkeypatch.setattr(sparse, "swapped_net", lambda *given: (dense.net, report))
    monkeypatch.setattr(sparse.Reference, "errors", lambda self, net: sparse.Errors(0.0, 0.0, 0.0, 0.0))
    made = sparse.make_sparse(dense, masks, sparse.KernelChoice("auto"), CPU, Steps())
    assert made.call is dense.call and made.variant == "dense: cuda_graph"


def test_one_failed_row_stops_no_other(modules, session, monkeypatch):
    first, second = point_of(modules), point_of(modules, sparsity=0.5)
    seen = []

    def measure(point):
        seen.append(point)
        if point == first:
            raise torch.OutOfMemoryError("no memory")

    session.options = replace(session.options, timed=True)
    monkeypatch.setattr(session, "measure", measure)
    assert modules["study"].run(session, [first, second], float("inf")) == 1
    assert seen == [first, second]
    assert modules["study"].run(session, [first], 0.0) == 0 and len(seen) == 2, "the time was over"


def test_every_line_computes_the_same(modules, session, tmp_path, caplog):
    ablation, point = modules["ablation"], point_of(modules, kernel_mode="sparse")
    with caplog.at_level("INFO"):
        ablation.Ablation(session, tmp_path / "ablation.csv").run([point], ablation.LINES, float("inf"))
    said = [record.getMessage() for record in caplog.records if record.name == "ablation"]
    assert [line.name for line in ablation.LINES if not any(f" {line.name}: " in text for text in said)] == []
    assert not [text for text in said if "failed" in text]


def test_recent_launches_do_not_count(modules):
    from sparsefront_kernels.gathered.sm90 import LAUNCHES
    from sparsefront_kernels.tuning.store import tuned_kernel

    from sparsefront.measure import timers

    table, untried = tuned_kernel("", LAUNCHES.kernel, LAUNCHES.version), timers.find_untried
    table.record("own", {})
    try:
        with modules["ablation"].shipped_launches_only():
            assert "own" not in table.entries and timers.find_untried(None, None) is None
        assert "own" in table.entries and timers.find_untried is untried
    finally:
        del table.entries["own"]


def full_row(modules, target, **more):
    base = {name: "" for name in modules["session"].COLUMNS} | target.point.columns
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
    other = rows[0] | {"allocation": "global_threshold", "speedup": "0.5", "min_layer_density": "0.001"}
    made = summary.tables([*rows, other], [])
    assert "kernel=sparse | global_threshold | 0.50 | 0.85 | 0.001 | 100% |" in made
    assert "| sparse | 2 | 0 | 1 | 0.85 |" in made, "another allocation is no row of the study"


def test_page_has_the_measured_tables(modules):
    summary = modules["summary"]
    tables = summary.tables(summary.read_lines(FOLDER / "h200.csv"), summary.read_lines(FOLDER / "ablation.csv"))
    again = "python -m experiments.end_to_end.summary --write experiments/end_to_end/README.md"
    begin, end = summary.MARKS
    assert f"{begin}\n\n{tables}\n{end}" in (FOLDER / "README.md").read_text(), again


def test_a_network_through_the_library(modules, monkeypatch):
    """In two patterns; a CPU's rows name no GPU."""
    library = modules["library"]
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    config = library.transformers.BertConfig(vocab_size=30, **sizes)
    ids = {"input_ids": torch.arange(24).reshape(2, 12), "use_cache": False}
    monkeypatch.setitem(library.NETWORKS, "tiny", lambda: (library.transformers.BertModel(config), ids))
    monkeypatch.setitem(library.POINTS, library.TILES, ("tile_wise", 0.5, {"granularity": 16}, "none"))
    rows = [library.measure("tiny", point, torch.device("cpu"), "auto", 5.0, CPU) for point in ("2:4", library.TILES)]
    assert [row["point"] for row in rows] == ["2:4", "tile_wise 75%"] and rows[0]["gpu"] == ""
    assert rows[0]["sparsity"] == 0.5 and rows[0]["blocks_rewritten"] == 1 and rows[0]["inputs"] == "2x12"


def test_published_networks_are_the_pages(modules):
    library = modules["library"]
    rows = library.read_lines(library.PUBLISHED)
    assert library.page(rows) in library.PAGE.read_text()
