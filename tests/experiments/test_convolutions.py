"""The study of ResNet50's convolutions: which there are, what a line holds, and what the page says of them."""

import sys
from pathlib import Path

import pytest
import torch

FOLDER = Path(__file__).resolve().parents[2] / "experiments" / "convolutions"


@pytest.fixture
def study(modules):
    return modules["study"]


@pytest.fixture
def summary(modules):
    return modules["summary"]


def test_a_line(study, monkeypatch):
    """On a CPU references are compared; times are made up."""
    real = study.autotune_layer

    def autotune_layer(layer, candidates, received):
        tuned = real(layer, candidates, received)
        assert received.problem.m == 2 * 7 * 7 and received.input_shape == (2, 64, 14, 14)
        tuned.latencies_us |= {tuned.dense: 3.0} | dict.fromkeys(tuned.modules, 2.0)
        return tuned

    monkeypatch.setattr(study, "autotune_layer", autotune_layer)
    shape = study.Shape(64, 128, 3, 2, 14)
    line = study.measure(
        **vars(shape),
        times=4,
        batch=2,
        dtype="bf16",
        pattern="block_wise",
        granularity=64,
        sparsity=0.5,
        device="cpu",
    )
    assert list(line) == study.COLUMNS
    assert (line["kernel"], line["speedup"], line["density"]) == ("blocked_reference", "1.5000", "0.5000")
    assert float(line["relative_error"]) < 5e-3


def test_without_a_gpu_nothing_is_timed(study, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["study.py"])
    with pytest.raises(SystemExit, match="CUDA GPU"):
        study.main()


def line(**changed):
    made = {"in_channels": "64", "out_channels": "64", "filter": "1", "stride": "1", "side": "56", "times": "1"}
    made |= {"batch": "128", "sparsity": "0.5", "density": "0.5", "kernel": "blocked_sm90", "latency_us": "10.0"}
    return made | {"dense_us": "11.0", "speedup": "1.1"} | changed


def test_means_weigh_shapes_by_occurrence(summary):
    rows = [line(speedup="2.0", times="3"), line(speedup="0.5", side="28")]
    assert summary.geomean(rows, [2.0, 0.5]) == pytest.approx(2**0.5)
    (found,) = [row for row in summary.means(rows) if row.startswith("| 128")]
    assert "**1.41**" in found and "1 of 2" in found and found.endswith("1.05, met |")
    assert summary.means([line(speedup="1.01")])[-1].endswith("1.05, short |")
    rows = [line(), line(sparsity="0.75", dense_us="10.5", speedup="1.05")]  # dense runs of one convolution differ
    assert "| **1.10** | 1.05 |" in summary.means(rows)[-2] and "| 10.5–11.0 |" in summary.shapes(rows)[-1]
