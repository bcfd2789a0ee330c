"""A GPU of which nothing was measured: tables of another one of its compute capability stand in for its own."""

import dataclasses

import pytest
import torch
from sparsefront_kernels.gathered.sm90 import LAUNCHES, Sm90Launch, Sm90Problem, best_predicted
from sparsefront_kernels.performance_model.rates import device_rates
from sparsefront_kernels.tuning import store
from sparsefront_kernels.tuning.launches import chosen_launch, forget_choices

CARDS = ("NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB", "NVIDIA H200")
CAPABILITIES = ((9, 0), (8, 0), (9, 0))
H100 = CARDS[0]


@pytest.fixture(autouse=True)
def cards(tmp_path, monkeypatch):
    monkeypatch.setenv("SPARSEFRONT_KERNELS_CACHE", str(tmp_path))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(CARDS))
    monkeypatch.setattr(torch.cuda, "get_device_name", CARDS.__getitem__)
    monkeypatch.setattr(torch.cuda, "get_device_capability", CAPABILITIES.__getitem__)
    caches = (store.stand_in.cache_clear, store.tuned_kernel.cache_clear, device_rates.cache_clear, forget_choices)
    for clear in caches:
        clear()
    yield
    for clear in caches:
        clear()


def shipped() -> tuple[Sm90Problem, Sm90Launch]:
    """A problem whose launch ships for the H200, where prediction would choose another."""
    for key, entry in store.tuned_kernel("NVIDIA H200", LAUNCHES.kernel, LAUNCHES.version).entries.items():
        numbers = dict(part.split("=") for part in key.split())
        m, k, n, amount = (int(float(numbers[name])) for name in ("m", "k", "n", "k_blocks"))
        problem = Sm90Problem(m, k, n, n // 128, amount * (n // 128))
        launch = Sm90Launch(**{name: value for name, value in entry.items() if name != "latency_us"})
        if "kept" not in numbers and launch != best_predicted(problem, 132):
            return problem, launch
    raise AssertionError("prediction chooses as measured everywhere")


def test_other_launches_count_as_unmeasured(caplog):
    problem, launch = shipped()
    assert chosen_launch(LAUNCHES, problem, H100, 132) == launch
    table = store.tuned_kernel(H100, LAUNCHES.kernel, LAUNCHES.version)
    assert not table.entries and table.stand_ins
    assert [record.getMessage().split(":")[0] for record in caplog.records] == [f"nothing was measured on {H100}"]
    assert "NVIDIA H200" in caplog.messages[0]


def test_own_measurements_come_first():
    problem, launch = shipped()
    own = dataclasses.replace(launch, pdl=not launch.pdl)
    LAUNCHES.record(problem, own, 1.0, H100).save()
    assert chosen_launch(LAUNCHES, problem, H100, 132) == own
    store.tuned_kernel.cache_clear()
    table = store.tuned_kernel(H100, LAUNCHES.kernel, LAUNCHES.version)
    assert len(table.entries) == 1 and len(table.stand_ins) > 1
    near = dataclasses.replace(problem, k_blocks=problem.k_blocks + 9 * problem.cta_tiles)
    assert chosen_launch(LAUNCHES, near, H100, 132) == own, "alike on this card, before the very problem on another"


@pytest.mark.parametrize("gpu", [CARDS[1], "NVIDIA H200", "a GPU that is not here", ""])
def test_nothing_stands_in_for_others(gpu, caplog):
    assert store.stand_in(gpu) is None
    assert not store.tuned_kernel(gpu, LAUNCHES.kernel, LAUNCHES.version).stand_ins
    assert not caplog.records
