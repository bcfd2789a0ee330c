"""The threads that are run again: every case is right at small widths, a wrong result is not timed, and the page has verdicts."""

import sys
from pathlib import Path

import pytest
import torch
from torch import nn

FOLDER = Path(__file__).resolve().parents[2] / "experiments" / "complaints"

CPU = torch.device("cpu")


@pytest.fixture
def call(modules, monkeypatch):
    """call(*arguments) -> exit status."""

    def run(*arguments: object) -> int:
        monkeypatch.setattr(sys, "argv", ["rerun.py", *map(str, arguments)])
        return modules["rerun"].main()

    return run


def case_of(modules, thread: str):
    return next(case for case in modules["cases"].CASES if thread in case.thread)


@pytest.mark.skipif(torch.cuda.is_available(), reason="here it would time")
def test_without_a_gpu_nothing_is_timed(call, tmp_path, capsys):
    assert call("--out", tmp_path / "verdicts.csv") == 1
    said = capsys.readouterr().err
    assert said.startswith("no CUDA device here") and said.count("\n") == 1 and not list(tmp_path.iterdir())


@pytest.mark.skipif(torch.cuda.is_available(), reason="on a GPU at full width")
def test_every_case_at_small_widths(call, tmp_path, capsys):
    assert call("--dry-run", "--out", tmp_path / "verdicts.csv") == 0
    lines = capsys.readouterr().out.splitlines()
    assert sum("kernels here: right" in line for line in lines) == 9
    assert sum("as in the thread: right" in line for line in lines) == 2, "PyTorch's 2:4 tensors want a GPU"
    assert not list(tmp_path.iterdir())


def test_what_is_wrong_is_not_timed(modules, monkeypatch):
    rerun, case = modules["rerun"], case_of(modules, "sparsegpt").scaled(64)

    def wrong(case, masked):
        return nn.Sequential(*(nn.Linear(k, n) for k, n in case.layers))

    monkeypatch.setattr(rerun, "as_in_the_thread", wrong)
    monkeypatch.setattr(rerun.sf, "benchmark", None)
    theirs = next(rerun.verdicts(case, CPU, timed=True))
    assert theirs["verdict"] == "unsupported" and "wrong: relative error" in theirs["because"]
    assert "speedup" not in theirs


@pytest.mark.parametrize(
    ("interval", "verdict"), [((1.1, 1.3), "win"), ((0.995, 1.2), "tie"), ((0.5, 0.9), "loss"), ((1.002, 1.3), "tie")]
)
def test_verdict_needs_an_interval(modules, monkeypatch, interval, verdict):
    rerun = modules["rerun"]

    class Compared:
        speedup, dense_ms, sparse_ms = 1.0, 1.0, 1.0

        class timed:
            class dense:
                class execution:
                    name = "eager"

            execution = dense.execution

    Compared.interval = interval
    monkeypatch.setattr(rerun.sf, "benchmark", lambda *nets, **settings: Compared)
    lines = list(rerun.verdicts(case_of(modules, "SparseLinear").scaled(64), CPU, timed=True))
    assert [line["verdict"] for line in lines] == [verdict, verdict]
