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


def test_a_result_that_is_written_again_keeps_the_provenance_of_its_measurement(run, as_of, tmp_path, monkeypatch):
    monkeypatch.setattr(end_to_end, "clock_under_load", lambda calls, device: 1755.0)
    as_of("a" * 40, "2.14.0")
    first = run(*ON_CPU, *SHORT)
    assert (first.identity.commit, first.identity.torch_version) == ("a" * 40, "2.14.0")
    assert first.identity.gpu_clock_mhz == 1755.0
    as_of("b" * 40, "2.15.0")
    monkeypatch.setattr(end_to_end, "clock_under_load", lambda calls, device: 345.0)
    assert run(*ON_CPU, *SHORT).identity == first.identity, "shown again"
    shutil.rmtree(tmp_path / "cache" / "result")
    composed = run(*ON_CPU, *SHORT).identity  # whose record says that the dense network was found finished
    assert replace(composed, record_sha256=first.identity.record_sha256) == first.identity, "of the same measurement"
    again = run(*ON_CPU, *SHORT, "stages=[swap,measure,report]", "reuse=false").identity
    assert (again.commit, again.torch_version, again.gpu_clock_mhz) == ("b" * 40, "2.15.0", 345.0), "measured again"


def test_a_cpu_time_is_that_of_a_processor_and_a_number_of_threads(run, tmp_path, monkeypatch):
    first = run(*ON_CPU, *SHORT)
    assert first.identity.processor and first.identity.threads == torch.get_num_threads()
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(threads + 1)
        more = run(*ON_CPU, *SHORT)
    finally:
        torch.set_num_threads(threads)
    assert more.identity.threads == threads + 1 and more.identity.run_id != first.identity.run_id
    monkeypatch.setattr(provenance, "processor_name", lambda: "another one")
    other = run(*ON_CPU, *SHORT)
    assert other.identity.processor == "another one" and other.identity.run_id != first.identity.run_id
    assert len(list((tmp_path / "cache" / "recover").glob("*/determined_by.json"))) == 1, "nothing was trained again"
    assert len(list((tmp_path / "cache" / "dense_quality").glob("*/determined_by.json"))) == 1


def test_weights_are_named_by_their_content(run):
    first, sparser = run(*ON_CPU, *SHORT), run(*ON_CPU, *SHORT, "sparsity=0.5")
    assert first.identity.dense_weights_sha256 == sparser.identity.dense_weights_sha256
    assert first.identity.weights_sha256 not in (None, first.identity.dense_weights_sha256)
    assert first.identity.weights_sha256 != sparser.identity.weights_sha256
    dense = run(*ON_CPU, *SHORT, "pattern=dense").identity
    assert dense.dense_weights_sha256 == first.identity.dense_weights_sha256 and dense.weights_sha256 is None
