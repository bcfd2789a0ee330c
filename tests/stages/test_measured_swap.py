"""kernel=auto takes the masked network where the swapped one is more than 2 % slower as a whole."""

from types import SimpleNamespace

import pytest
import torch

from sparsefront.inference.precision import PrecisionChoice
from sparsefront.stages import measure as speed

WITH_KERNELS, MASKED = SimpleNamespace(), SimpleNamespace()


@pytest.fixture
def measured(monkeypatch):
    """measured(sparse_ms, ...) -> the network that is reported; the dense one takes 1 ms."""

    def measure(
        sparse_ms: float,
        *,
        dense_allowed: bool = True,
        device: str = "cuda",
        share: float = 1.0,
        rewritten=(),
        precision: str = "none",
        low=None,
    ):
        timed = []

        def sparse_speed(bench, dense_net, sparse, ways):
            timed.append(sparse.net)
            return {"latency_sparse_ms": sparse_ms, "latency_dense_ms": 1.0, **(low or {})}, {}

        report = SimpleNamespace(sparse_flops_share=share, fusion=SimpleNamespace(rewritten=rewritten))
        monkeypatch.setattr(speed, "swap_in", lambda *_: speed.SparseNetwork(WITH_KERNELS, report))
        monkeypatch.setattr(speed, "sparse_speed", sparse_speed)
        monkeypatch.setattr(speed, "kept_dense", lambda report, masked, why: SimpleNamespace(why=why))
        monkeypatch.setattr(speed, "has_low_precision", lambda net: True)
        monkeypatch.setattr(speed, "architecture_text", lambda net: "")
        monkeypatch.setattr(speed, "dense_in", lambda bench, net, precision: (net, precision))
        kernel = SimpleNamespace(dense_allowed=dense_allowed)
        measure = SimpleNamespace(latency=True)
        experiment = SimpleNamespace(kernel=kernel, precision=PrecisionChoice(precision), measure=measure)
        bench = SimpleNamespace(device=torch.device(device), experiment=experiment, ready=lambda net: net, prompt=None)
        sparse, _, _ = speed.measured_swap(bench, None, lambda: MASKED, None)
        assert timed[-1] is sparse.net, "what is reported is what was timed last"
        return sparse

    return measure


def test_a_slower_whole_stays_dense(measured):
    kept = measured(1.1)
    assert kept.net is MASKED and kept.report.why == "the whole network takes 1.100 ms with kernels, 1.000 ms dense"


def test_a_faster_one_does_not(measured):
    assert measured(0.9).net is WITH_KERNELS and measured(1.01).net is WITH_KERNELS


def test_in_low_precision_it_must_beat_dense_in_it(measured):
    low = {"precision": "fp8", "low": {"dense_low_precision": "fp8", "latency_dense_low_ms": 0.5}}
    assert measured(0.6, **low).net == (MASKED, "fp8") and measured(0.5, **low).net is WITH_KERNELS
    assert measured(0.6, low=low["low"]).net is WITH_KERNELS, "in 16 bits it must beat dense in 16 bits"
    assert measured(1.1, precision="int8").net == (MASKED, "int8")


def test_forced_kernels_stay_whatever_they_cost(measured):
    assert measured(3.0, dense_allowed=False).net is WITH_KERNELS


def test_references_on_a_cpu_stay(measured):
    assert measured(3.0, device="cpu").net is WITH_KERNELS


def test_slower_blocks_of_dense_products_stay_as_they_are(measured):
    assert measured(1.1, share=0.0, rewritten=("block",)).net is MASKED
    assert measured(1.01, share=0.0, rewritten=("block",)).net is WITH_KERNELS


def test_a_network_that_nothing_was_changed_in_is_not_timed_twice(measured):
    assert measured(3.0, share=0.0).net is WITH_KERNELS
