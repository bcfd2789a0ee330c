"""Provenance belongs to a measurement: it is kept with it, and decides what counts as the same one."""

import shutil
from dataclasses import replace

import pytest
import torch

from sparsefront import provenance
from sparsefront.measure import end_to_end

ON_CPU = (
    "trainer=cpu",
    "measure.device=cpu",
    "model.dim=64",
    "model.depth=1",
    "report.html=false",
    "report.plot=false",
)
SHORT = ("pattern=vector_wise", "granularity=32", "model.dim=64", "model.depth=1", "measure.evaluate_limit=8")


@pytest.fixture
def as_of(monkeypatch):
    """as_of(commit, torch version): another state of the same machine, for what follows."""

    def change(commit: str, torch_version: str) -> None:
        provenance.code_commit.cache_clear()
        monkeypatch.setenv("SPARSEFRONT_COMMIT", commit)
        monkeypatch.setattr(torch, "__version__", torch_version)

    yield change
    provenance.code_commit.cache_clear()


def test_rewritten_result_keeps_its_provenance(run, as_of, tmp_path, monkeypatch):
    monkeypatch.setattr(end_to_end, "clock_under_load", lambda calls, device: 1755.0)
    as_of("a" * 40, "2.14.0")
    first, rows = run(*ON_CPU, *SHORT), tmp_path / "results" / "rows.csv"
    assert (first.identity.commit, first.identity.torch_version) == ("a" * 40, "2.14.0")
    assert first.identity.gpu_clock_mhz == 1755.0
    as_of("b" * 40, "2.15.0")
    monkeypatch.setattr(end_to_end, "clock_under_load", lambda calls, device: 345.0)
    assert run(*ON_CPU, *SHORT) == first, "shown again"
    shutil.rmtree(tmp_path / "cache" / "result")
    composed = run(*ON_CPU, *SHORT).identity  # whose record says that the dense network was found finished
    assert replace(composed, record_sha256=first.identity.record_sha256) == first.identity, "of the same measurement"
    again = run(*ON_CPU, *SHORT, "stages=[swap,measure,report]", "reuse=false")
    now = again.identity
    assert (now.commit, now.torch_version, now.gpu_clock_mhz) == ("b" * 40, "2.15.0", 345.0), "measured again"
    assert now.run_id == first.identity.run_id and again.quality == first.quality
    assert rows.read_text().count(now.run_id) == 1
