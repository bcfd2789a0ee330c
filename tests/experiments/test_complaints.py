"""The threads that are run again: every case is right at small widths, a wrong result is not timed, and the page has verdicts."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from experiments.harness.rows import read_lines

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


def test_eight_threads_and_their_chains(modules):
    cases = modules["cases"].CASES
    assert len({case.thread.split(",")[0] for case in cases}) == 8
    for case in cases:
        for chain in (case.layers, case.scaled(16).layers):
            assert all(before[1] == after[0] for before, after in zip(chain, chain[1:])), case.thread


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


def test_bytes_of_a_csr_weight(modules):
    ways, case = modules["rerun"], replace(case_of(modules, "SparseLinear").scaled(64), layers=((64, 128),))
    net = ways.dense_net(case, CPU)
    assert ways.weight_bytes(net) == 4 * (64 * 128 + 128)
    masked, _ = ways.masked_net(case, net, (torch.randn(2, 64),))
    kept = int(masked[0].weight.count_nonzero())
    found = ways.weight_bytes(ways.as_in_the_thread(case, masked))
    assert found >= kept * (4 + 8) + 129 * 8 + 128 * 4, "PyTorch's column indices are a view of twice as many"
    assert found < ways.weight_bytes(net)


def test_page_holds_the_verdicts(modules, tmp_path):
    rerun, page = modules["rerun"], modules["page"]
    win = dict.fromkeys(rerun.COLUMNS, "") | {"verdict": "win", "speedup": "1.5", "speedup_low": "1.4"}
    win |= {"speedup_high": "1.6", "dense_ms": "3", "sparse_ms": "2", "bytes_dense": "2e6", "bytes_sparse": "1e6"}
    text = "\n".join(page.verdict_table({("pytorch/pytorch#153825", rerun.OURS): win}))
    line = next(line for line in text.splitlines() if "#153825" in line)
    assert "| missing | **win** 1.50x (1.40–1.60)" in line and line.endswith("| 2.0 MB, –, 1.0 MB |")


def test_committed_page_has_the_verdicts(modules):
    lines = {(line["thread"], line["way"]): line for line in read_lines(FOLDER / "verdicts.csv")}
    assert "\n".join(modules["page"].verdict_table(lines)) in (FOLDER / "README.md").read_text()
