"""Tables show what they promise, on narrow terminals too, and sort with empty values last.

What is printed at the end of a run and of a sweep: paths can be copied from one line.

Thousands of rows: compared, appended to without reading all, and readable where they are shown.

Collapsed layers in tables, pages and records, old ones too.

A network with another sparsity than requested is reported before its recovery.
"""

import io
import json
import logging
from types import SimpleNamespace

import pytest
import torch
import yaml
from rich.console import Console
from rich.table import Table
from torch import nn

from sparsefront.errors import InvalidSetting
from sparsefront.patterns.element_wise import ElementWise
from sparsefront.pruning.mask_spec import MaskSpec
from sparsefront.pruning.masks import Masks
from sparsefront.results.columns import choose_columns, sort_results
from sparsefront.results.comparable import split_comparable
from sparsefront.results.page.run import write_run_page
from sparsefront.results.tables import (
    print_group,
    print_results,
    print_run,
    print_sweep,
    results_table,
    run_table,
)
from sparsefront.schedule.gradual import Gradual
from sparsefront.schedule.one_shot import OneShot
from sparsefront.stages.prune import describe_miss


def text_of(table: Table, width: int = 200) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(table)
    return console.file.getvalue()


def test_speedup_of_a_cpu_says_so(make_result):
    text = text_of(run_table(make_result(repeats=5)))
    (speedup,) = [line for line in text.splitlines() if "1.50×" in line]
    assert "1.50× (CPU reference, not a GPU latency)" in speedup and "faster" not in text
    (interval,) = [line for line in text.splitlines() if "1.40× – 1.60×" in line]
    assert "bootstrap 95 % of the ratio of medians, 5 repeats" in interval
    gpu = text_of(run_table(make_result(latency_device="cuda", gpu="H200")))
    assert "bootstrap 95 %" in gpu and "CPU" not in gpu
    results = [make_result(), make_result(speedup=2.0)]
    assert "speedup: CPU reference, not a GPU latency" in text_of(results_table(results))
    assert "CPU" not in text_of(results_table([make_result(latency_device="cuda")]))


def test_tables_show_the_standard_error(make_result):
    evaluated = {"sparse_standard_error": 0.0054, "dense_standard_error": 0.0044, "evaluated_samples": 1000}
    one = text_of(run_table(make_result(**evaluated, evaluate_limit=1000)))
    assert "97.00 ± 0.54 %" in one and "98.00 ± 0.44 %" in one
    assert "1000 test samples (measure.evaluate_limit=1000); ± is their standard error" in one
    several = text_of(results_table([make_result(**evaluated), make_result(**evaluated, seed=4)]))
    assert "97.00 ± 0.54 %" in several and "evaluated_samples 1000" in several
    assert "±" not in text_of(results_table([make_result(), make_result(seed=4)])), "an older result does not tell"


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({"speedup_low": 1.1, "speedup_high": 1.3}, "faster"),
        ({"speedup_low": 0.7, "speedup_high": 0.9}, "slower"),
        ({"speedup_low": 0.9, "speedup_high": 1.1}, "no clear difference"),
        ({"sparse_flops_share": 0.25}, "mostly dense kernels"),
    ],
)
def test_win_needs_interval_and_kernels(make_result, changes, verdict):
    assert f"1.50×, {verdict}" in text_of(run_table(make_result(**changes, latency_device="cuda")))


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({}, "5.0"),
        ({"dense_reused": False}, "5.2"),
        ({"dense_reused": False, "trainer_parameters": {"devices": 2}, "dense_continued_seconds": 60.0}, "10.4"),
        ({"measure_seconds": None}, None),
        ({"gpu": None}, None),
    ],
)
def test_results_table_adds_gpu_minutes(make_result, changes, text):
    cost = {"gpu": "NVIDIA H200", "recover_seconds": 180.0, "prune_seconds": 20.0, "measure_seconds": 100.0}
    results = [make_result(**cost | changes, seed=seed) for seed in (0, 1)]
    assert choose_columns(results)[1].get("GPU minutes") == text


@pytest.mark.parametrize(
    ("device", "end"), [("cpu", "latency on a CPU says nothing about a GPU"), ("cuda", "speedup 1.50×")]
)
def test_run_ends_with_three_lines(make_result, capsys, tmp_path, monkeypatch, device, end):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "results" / "a"
    (folder / ".hydra").mkdir(parents=True)
    (folder / ".hydra" / "overrides.yaml").write_text("- sparsity=0.5\n- seed=4\n")
    long = {"dense_variant": "eager+patch_product+fused_qkv", "fused_dense_latency_ms": 1.0, "repeats": 5}
    reasons = {"embedding": "a parameter of VisionTransformer itself, and not the weight of a Linear or convolution"}
    result = make_result(latency_device=device, dense_weights=reasons, val_dense=0.9, **long)
    print_run(result, [folder / "row.json", folder / "report.html"], checkpoint="cache/export/b")
    *table, what, where, following = capsys.readouterr().out.splitlines()
    assert len(table) + 3 <= 25 and max(map(len, table)) <= 100
    assert not [word for word in ("patch_product", "fused graph", "a parameter of") if word in "\n".join(table)]
    assert " % zeros: accuracy 98.00 → 97.00 %; " in what and end in what
    assert where == "in results/a/ row.json, report.html; the network: cache/export/b"
    assert following == (
        "next: python compare.py results  |  python -m sparsefront.verify results/a/row.json  |  "
        "python run.py -m seed=0,1,2 sparsity=0.5"
    )
    print_run(result, [folder / "row.json"], is_point=True)
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_square_brackets_are_no_markup(make_result):
    reason = "needs [K] a multiple of 8 [bold] [/red]"
    assert reason in text_of(run_table(make_result(dense_layers={"layer": reason})))
    assert "[/red]" in text_of(results_table([make_result(run_id="[/red]")]))


def test_sorting_puts_the_best_first(make_result):
    results = [make_result(speedup=value, latency_sparse_ms=value) for value in (1.0, None, 3.0, 2.0)]
    rising = [1.0, 2.0, 3.0, None]
    for by, order in (("speedup", [3.0, 2.0, 1.0, None]), ("-speedup", rising), ("latency_sparse_ms", rising)):
        assert [result.speed.speedup for result in sort_results(results, by)] == order


@pytest.mark.parametrize("name", ["speed", "kernel_per_layer", ""])
def test_sorting_by_no_column(make_result, name):
    with pytest.raises(InvalidSetting, match="no such column; closest are "):
        sort_results([make_result()], name)


def test_names_and_messages_control_no_terminal(capsys, make_result, tmp_path):
    """A stranger's folder may hold escape sequences in any name."""
    hostile = make_result().with_values({"pattern": "n_m\x1b[2J", "model": "a\rb\u202e", "run_id": "x\x07"})
    print_results([hostile])
    print_run(hostile, [])
    failed = tmp_path / "a\x1b[1A"
    (failed / ".hydra").mkdir(parents=True)
    (failed / ".hydra" / "overrides.yaml").write_text(yaml.dump(["pattern=\x9b31m"]))
    (failed / "failure.json").write_text(json.dumps({"message": "first line\nsecond\x1b]0;t\x07"}))
    print_sweep(tmp_path)
    shown = capsys.readouterr().out
    assert not set(shown) & set("\x1b\r\x07\u202e\x9b")
    assert r"n_m\x1b[2J" in shown and r"pattern=\x9b31m" in shown and "\n" + "     first line\nsecond" in shown


def test_narrow_terminal_gets_a_narrow_table(mixed, capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "80")
    (group,) = split_comparable(mixed(200))
    print_group(group, [], most=10)
    shown = capsys.readouterr().out
    assert "90 more candidates: in compare.html, or rows=all" in shown and "run_id" not in shown
    assert "- at most 1 point lost; verdict faster; not ranked: fewer than 3 seeds; fastest" in shown
    print_group(group, [], most=99)
    assert "1 more candidate: in compare.html" in capsys.readouterr().out
    print_group(group, [], most=None)
    assert "more candidate" not in capsys.readouterr().out


LOST = {"blocks.0.fc1": 0.5, "blocks.0.fc2": 1.0, "blocks.1.fc2": 0.999}


def test_page_marks_the_layers(make_result, tmp_path):
    lost = make_result(sparsity_per_layer=LOST, allocation="global_threshold")
    page = write_run_page(lost, tmp_path / "a.html", title="a").read_text()
    assert page.count('<td class="collapsed">') == 2 and '<td class="collapsed">0.500' not in page
    assert "allocation=per_layer, or allocation=global_threshold" in page
    assert '<td class="collapsed">' not in write_run_page(make_result(), tmp_path / "b.html", title="b").read_text()


def told(
    kept: list[float | None], *, schedule: object = OneShot(), sparsities: dict | None = None, **allocation: object
):
    """Of a network of equal layers, each with the density of its mask; None: it has no mask."""
    net = nn.Sequential(*(nn.Linear(10, 10) for _ in kept))
    masks = {str(n): torch.arange(100) < 100 * density for n, density in enumerate(kept) if density is not None}
    ignored = {str(number): "too small" for number, density in enumerate(kept) if density is None}
    settings = {"allocation": SimpleNamespace(**allocation), "pattern": ElementWise(), "schedule": schedule}
    experiment = SimpleNamespace(sparsity=0.75, **settings)
    found = Masks(masks, spec=MaskSpec(sparsities=sparsities), ignored=ignored)
    return describe_miss(experiment, net, found, [str(number) for number in range(len(kept))])


def test_near_budget_is_not_told():
    assert told([0.25, 0.27]) is None
    assert told([0.6, None], speedup=1.5) is None and told([0.6], latency_ms=2.0) is None
    assert told([0.6], speedup=None, latency_ms=None) is not None


def test_schedule_is_judged_by_its_end():
    assert told([1.0, 1.0], schedule=Gradual()) is None
    assert told([1.0, 1.0], schedule=Gradual(), sparsities={"0": 0.9, "1": 0.6}) is None
    assert told([1.0, None], schedule=Gradual()) == (
        "pruning: 0.38 of the weights will be gone where sparsity=0.75 was asked for: 1 of 2 layers stay dense (too small)"
    )


def test_run_says_so_before_recovery(run, caplog):
    row = run("trainer=cpu", "measure.device=cpu", "measure.evaluate_limit=8", "recipe.ignore=[fc]")
    warnings = (record.message for record in caplog.records if record.levelno == logging.WARNING)
    (line,) = (text for text in warnings if text.startswith("pruning: "))
    assert line.startswith(f"pruning: {row.sparsity.sparsity_achieved:.2f} of the weights are gone where sparsity=")
    assert f"{len(row.sparsity.dense_layers)} of {len(row.sparsity.sparsity_per_layer)} layers stay dense (" in line
