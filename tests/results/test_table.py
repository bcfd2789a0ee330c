"""Tables show what they promise, on narrow terminals too, and sort with empty values last."""

import io

import pytest
from rich.console import Console
from rich.table import Table

from sparsefront.errors import InvalidSetting
from sparsefront.results.columns import shown_columns, sort_results
from sparsefront.results.tables import dense_layers_text, results_table, run_table


def text_of(table: Table, width: int = 200) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(table)
    return console.file.getvalue()


def test_a_speedup_of_a_cpu_says_what_it_is_and_what_its_interval_is(make_result):
    text = text_of(run_table(make_result(repeats=5)))
    (speedup,) = [line for line in text.splitlines() if "1.50×" in line]
    assert "1.50× (CPU reference, not a GPU latency)" in speedup and "faster" not in text
    (interval,) = [line for line in text.splitlines() if "1.40× – 1.60×" in line]
    assert "bootstrap 95 % interval of the ratio of medians over 5 repeats" in interval
    gpu = text_of(run_table(make_result(latency_device="cuda", gpu="H200")))
    assert "bootstrap 95 % interval" in gpu and "CPU" not in gpu
    results = [make_result(), make_result(speedup=2.0)]
    assert "speedup: CPU reference, not a GPU latency" in text_of(results_table(results))
    assert "CPU" not in text_of(results_table([make_result(latency_device="cuda")]))


def test_tables_show_the_standard_error_and_of_how_many_samples(make_result):
    evaluated = {"sparse_standard_error": 0.0054, "dense_standard_error": 0.0044, "evaluated_samples": 1000}
    one = text_of(run_table(make_result(**evaluated, evaluate_limit=1000)))
    assert "97.00 ± 0.54 %" in one and "98.00 ± 0.44 %" in one
    assert "1000 test samples (measure.evaluate_limit=1000); ± is their standard error" in one
    several = text_of(results_table([make_result(**evaluated), make_result(**evaluated, seed=4)]))
    assert "97.00 ± 0.54 %" in several and "evaluated_samples 1000" in several
    assert "±" not in text_of(results_table([make_result(), make_result(seed=4)])), "an older result does not tell"


def test_run_table_says_what_was_not_measured(make_result):
    result = make_result(sparse=None, latency_sparse_ms=None, speedup=None, speedup_low=None, latency_kernel=None)
    text = text_of(run_table(result))
    assert text.count("not measured") == 2


@pytest.mark.parametrize(
    ("low", "high", "verdict"), [(1.1, 1.3, "faster"), (0.7, 0.9, "slower"), (0.9, 1.1, "no clear difference")]
)
def test_a_win_needs_an_interval_beyond_one(make_result, low, high, verdict):
    assert verdict in text_of(run_table(make_result(speedup_low=low, speedup_high=high, latency_device="cuda")))


def test_a_win_needs_sparse_kernels(make_result):
    assert "1.50×, mostly dense kernels" in text_of(
        run_table(make_result(sparse_flops_share=0.25, latency_device="cuda"))
    )


def test_results_table_always_shows_the_promised_columns(make_result):
    text = text_of(results_table([make_result(), make_result(run_id="run-1")]))
    header = "".join(text.split())
    for words in ("dense", "masked", "sparse", "seed", "speedup"):
        assert words in header
    assert "98.00%" in header and "3.50" in header and "1.50×" in header and "run-1" in header


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
    assert shown_columns(results)[1].get("GPU minutes") == text


def test_runs_of_one_recovery_are_told_apart_by_its_settings(make_result):
    distilled = [
        make_result(recovery="distill", recovery_parameters={"hardness": hardness, "temperature": 2.0})
        for hardness in (0.5, 1.0)
    ]
    text = text_of(results_table(distilled))
    assert "recovery.hardness=0.5" in text and "recovery.hardness=1.0" in text and "temperature" not in text
    other = make_result(recovery="finetune", recovery_parameters={"hardness": 3})
    assert "hardness" not in text_of(results_table([distilled[0], other])), "another recovery is named by its name"
    trained = [make_result(trainer_parameters={"devices": devices}) for devices in (1, 2)]
    assert "trainer.devices=2" in text_of(results_table(trained))


def test_dense_layers_are_counted_by_reason(make_result):
    reasons = {"a": "narrow", "b": "odd", "c": "narrow"}

    def of(**values) -> str:
        return dense_layers_text(make_result(**{"dense_layers": {}} | values))

    assert of() == "none"
    assert of(kernel_mode="none") == "all: kernel=none swaps nothing in"
    assert of(dense_layers=reasons) == "3: 2 × narrow; 1 × odd"
    shares = {"a": 0.01, "b": 0.02, "c": 0.0951}
    held = {"dense_layers": reasons, "dense_weight_shares": shares}
    assert of(**held) == "3 with 12.51 % of the prunable weights: 2 × narrow; 1 × odd"
    others = {"dense_weights": {"embed": "no kernel", "head": "it has no mask"}}
    assert of(**others) == "2 (none of them prunable): 1 × no kernel; 1 × it has no mask"
    assert of(**held, **others).startswith("5 (3 of them prunable, with 12.51 % of the prunable weights): 2 × narrow; ")


def test_square_brackets_are_shown_and_not_read_as_markup(make_result):
    reason = "needs [K] a multiple of 8 [bold] [/red]"
    assert reason in text_of(run_table(make_result(dense_layers={"layer": reason})))
    assert "[/red]" in text_of(results_table([make_result(run_id="[/red]")]))


def test_sorting_puts_the_best_first_and_the_unmeasured_last(make_result):
    results = [make_result(speedup=value, latency_sparse_ms=value) for value in (1.0, None, 3.0, 2.0)]
    assert [result.speed.speedup for result in sort_results(results, "speedup")] == [3.0, 2.0, 1.0, None]
    assert [result.speed.speedup for result in sort_results(results, "-speedup")] == [1.0, 2.0, 3.0, None]
    assert [result.speed.speedup for result in sort_results(results, "latency_sparse_ms")] == [1.0, 2.0, 3.0, None]


@pytest.mark.parametrize("name", ["speed", "kernel_per_layer", ""])
def test_sorting_by_no_column_names_the_closest(make_result, name):
    with pytest.raises(InvalidSetting, match="no such column; closest are "):
        sort_results([make_result()], name)
