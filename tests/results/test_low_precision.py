"""Tables, sentences and plots of low precision: dense in it is a baseline, and the faster dense version is named."""

import io

import pytest
from rich.console import Console

from sparsefront.results.candidates import candidates_of, low_baseline_is_faster
from sparsefront.results.comparable import DATASET_SPEEDUP, LATENCY, split_comparable
from sparsefront.results.plots import write_pareto_png
from sparsefront.results.statistics import budget_table
from sparsefront.results.tables import run_table

LOW = {"precision": "fp8", "dense_low": 0.975, "dense_low_standard_error": 0.004, "val_dense_low": 0.97, "repeats": 5}
LOW |= {"dense_low_precision": "fp8", "latency_dense_low_ms": 4.2, "latency_dense_low_p20_ms": 4.1}
LOW |= {"latency_dense_low_p80_ms": 4.3, "latency_device": "cuda", "gpu": "H200", "dtype": "fp16"}
LOW |= {f"speedup_low_precision{end}": value for end, value in (("", 1.2), ("_low", 1.15), ("_high", 1.25))}


def text_of(table, width=240) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(table)
    return console.file.getvalue()


def test_run_names_the_faster_baseline(make_result):
    text = text_of(run_table(make_result(**LOW)))
    for expected in ("accuracy, dense in fp8", "97.50 ± 0.40 %", "latency, dense in fp8", "4.20 ms (4.10 – 4.30)"):
        assert expected in text
    (line,) = [line for line in text.splitlines() if "speedup over dense in fp8" in line]
    assert "1.20×, faster; this dense version is the faster one" in line
    slower = make_result(**LOW | {"latency_dense_low_ms": 6.0, "speedup_low_precision": 1.7})
    assert "this dense version" not in text_of(run_table(slower)) and not low_baseline_is_faster(slower)
    assert "fp8" not in text_of(run_table(make_result()))


def test_two_precisions_in_one_plot(make_result, tmp_path):
    sparse = {name: value for name, value in LOW.items() if name != "precision"}
    results = [make_result(**LOW), make_result(**sparse, run_id="b"), make_result(**LOW, seed=4, run_id="c")]
    found = candidates_of(results)
    assert sorted((one.pattern, len(one.results)) for one in found) == [("tile_wise 128", 1), ("tile_wise 128 fp8", 2)]
    assert len({one.structure for one in found}) == 2
    (group,) = split_comparable(results)
    assert group.dense_point("dense_low") == (pytest.approx(5.25 / 4.2), 97.5) and group.low_label == "dense in fp8"
    (by_latency,) = split_comparable(results, LATENCY)
    assert by_latency.dense_point("dense_low") == (4.2, 97.5)
    (own_lengths,) = split_comparable(results, DATASET_SPEEDUP)
    assert own_lengths.dense_point("dense_low") is None
    assert write_pareto_png(results, tmp_path / "plot.png").stat().st_size > 0
    (*_, line) = budget_table(group)
    assert line["speedup"].startswith("1.50×") and line["over dense in low precision"] == "1.20×, fp8"
