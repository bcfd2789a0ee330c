"""Searches that end in time: what is begun, what is left out, and what another call need not look for again."""

import copy
import math

import pytest
import torch
from sparsefront_kernels import cuda_library
from torch import nn

import sparsefront as sf
from sparsefront.measure import end_to_end, fastest, search_time
from sparsefront.measure.search_time import SearchTime, part, searching, spending, time_work, too_late

X = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def clock(monkeypatch):
    """clock(seconds): time goes by."""
    now = [0.0]

    def pass_by(seconds):
        now[0] += seconds

    monkeypatch.setattr(search_time, "working_time", lambda: now[0])
    return pass_by


def test_nothing_begins_too_late(clock):
    assert too_late("anything", "compile") is None, "without a search there is no limit"
    with searching(SearchTime(60.0)) as search:
        assert too_late("first", "compile") is None
        with time_work("compile"):
            clock(25.0)
        with part(0.5, "dense"):
            assert too_late("variant", "variant") is None, "of another kind, of which none was seen"
            assert too_late("second", "compile") == "not tried: about 25 s are needed, 18 s of the search are left"
        assert too_late("second", "compile") is None
        clock(15.0)
        left = "not tried: about 25 s are needed, 20 s of the search are left"
        assert too_late("variant", "variant", "compile") == left, "there would be no time to compile"
        assert too_late("variant", "variant") is None
        clock(25.0)
        assert too_late("variant", "variant") == "not tried: about 0 s are needed, 0 s of the search are left"
    assert [*search.left_out] == ["dense/second", "variant"]
    assert search.summary().startswith("65.0 s; 2 things left out, seconds=60: dense/second (not tried: about 25 s")
    assert SearchTime(math.inf).limit() == "without a limit"


def test_builds_are_no_search(clock, monkeypatch, tmp_path):
    def build(name):
        clock(100.0)
        return tmp_path / name

    lines = []
    monkeypatch.setattr(cuda_library, "built", lambda name: None)
    monkeypatch.setattr(cuda_library, "_missing_tool", lambda: None)
    monkeypatch.setattr(cuda_library, "_build_once", build)
    with (
        searching(SearchTime(60.0, lines.append)) as search,
        part(0.5, "kernels"),
        spending("whole"),
        time_work("layer"),
    ):
        clock(2.0)
        with spending("checks"):
            clock(3.0)
            assert cuda_library.build("csr_sm90").name == "csr_sm90"
        assert search.left == 25.0
    assert too_late("another", "layer") is None, "without the build it took 5 s"
    assert search.taken == {"search": 5.0, "builds": 100.0, "checks": 3.0, "whole": 2.0}
    assert search.summary() == "5.0 s (3.0 s checks, 2.0 s whole); before it 100.0 s builds"
    assert lines[0] == "building 1 CUDA library with nvcc, once on this machine: csr_sm90" and len(lines) == 2


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(8, 4), nn.Linear(8, 4)

    def forward(self, x):
        return self.one(x) - self.two(x)


@pytest.fixture
def searches(monkeypatch):
    """The networks that were searched, by how many of their modes and variants were timed."""
    found, real = [], fastest.ExecutionSearch.result
    monkeypatch.setattr(fastest.ExecutionSearch, "result", lambda search: found.append(real(search)) or found[-1])
    return found


def compared(seconds=None, x=X):
    told = []
    settings = sf.Measure(warmup=0, samples=5, repeats=1)
    sf.benchmark(Net(), Net(), (x,), settings=settings, seconds=seconds, tell=told.append)
    return told


def test_another_benchmark_searches_nothing(searches):
    told = compared()
    assert told[0] == "benchmark: the fastest execution mode of each network on cpu, for at most 60 s"
    assert len(told) == 2 and told[1].endswith(" s")
    assert len(searches) == 1, "networks that are alike run alike"
    compared()
    assert len(searches) == 1
    compared(x=torch.randn(5, 8))
    assert len(searches) == 2


def test_decided_versions_are_those_that_run(searches, monkeypatch):
    """Of this network: another one of its architecture is searched. Versions that fail are reported, and searched again."""
    decided, inputs, settings = Net().eval(), {"x": X}, sf.Measure(device="cpu", dtype="fp32")
    end_to_end.set_decided_versions(decided, inputs, settings, ["eager+fused_qkv"])
    for net in (decided, copy.deepcopy(decided)):
        assert end_to_end.find_execution(net, inputs, settings).name == "eager+fused_qkv" and not searches
    end_to_end.find_execution(Net().eval(), inputs, settings)
    end_to_end.find_execution(decided, {"x": torch.randn(5, 8)}, settings)
    assert len(searches) == 2
    end_to_end.set_decided_versions(decided, inputs, settings, ["cuda_graph"])
    with searching(SearchTime(60.0)) as budget:
        assert "eager" in end_to_end.find_execution(decided, inputs, settings).medians_ms and len(searches) == 3
    assert "the fastest before, fails now: " in budget.left_out["cuda_graph"]


def alone(net=None, rows=4, **settings):
    """As a run of the program times a dense network."""
    settings = {"dtype": "fp32", "variants": ["fused_qkv"], "autotune_seconds": 0.0} | settings
    settings = sf.Measure(warmup=0, samples=5, repeats=1, device="cpu", **settings)
    inputs = {"x": torch.randn(rows, 8, dtype=settings.torch_dtype)}
    return end_to_end.time_alone((net or Net()).eval().to(settings.torch_dtype), inputs, settings)


class Other(Net):
    """The same layers in another network."""


@pytest.mark.parametrize("other", [{"net": Other()}, {"rows": 5}, {"dtype": "bf16"}, {"variants": []}], ids=str)
def test_points_of_a_sweep_search_once(searches, other):
    """With all variants, whatever the limit, unlike a library call. Each point times what was found anew."""
    first, second = alone(), alone()
    assert len(searches) == 1 and "eager+fused_qkv" in searches[0].medians_ms
    assert second.execution.known and second.execution.versions == first.execution.versions
    assert second.execution.not_timed == first.execution.not_timed and second.samples_ms != first.samples_ms
    assert not alone(**other).execution.known and len(searches) == 2
    compared()
    assert len(searches) == 3


@pytest.mark.parametrize("late", [True, False])
def test_skipped_ones_are_tried_later(searches, monkeypatch, late):
    real = fastest.ExecutionSearch.result
    not_timed = {"max_autotune": "not tried: about 40 s are needed, 10 s of the search are left"} if late else {}
    monkeypatch.setattr(
        fastest.ExecutionSearch, "result", lambda search: search.not_timed.update(not_timed) or real(search)
    )
    known = [alone(autotune_seconds=seconds).execution.known for seconds in (30.0, 30.0, 10.0, 60.0)]
    assert known == [False, True, True, not late]


@pytest.mark.parametrize("changed", ["gpu", "driver", "torch", "code"])
def test_searches_of_another_environment(monkeypatch, tmp_path, changed):
    here = {"gpu": "NVIDIA H200", "driver": "580.1", "torch": "2.11", "code": "a"}
    monkeypatch.setenv("SPARSEFRONT_KERNELS_CACHE", str(tmp_path))
    monkeypatch.setattr(search_time, "DRIVER", tmp_path / "version")
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: here["gpu"])
    monkeypatch.setattr(search_time, "versions", lambda *names: {"torch": here["torch"]})
    monkeypatch.setattr(search_time, "code_digest", lambda *roots, **options: here["code"])

    def in_new_process():
        search_time._environment_digest.cache_clear()
        search_time.DRIVER.write_text(here["driver"])
        return search_time.SearchCache("modes", ("sparsefront.measure.fastest",))

    device, found = torch.device("cuda"), {"versions": ["eager"], "not_timed": {}, "seconds": None}
    in_new_process().keep("key", found, device)
    assert in_new_process().get("key", device) == found
    here[changed] += "0"
    assert in_new_process().get("key", device) is None
    search_time._environment_digest.cache_clear()
