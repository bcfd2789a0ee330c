"""Tuned parameters on disk: written, merged and read back."""

import json

import pytest
from sparsefront_kernels.tuning import store


@pytest.fixture(autouse=True)
def folders(tmp_path, monkeypatch):
    monkeypatch.setenv("SPARSEFRONT_KERNELS_CACHE", str(tmp_path / "user"))
    monkeypatch.setattr(store, "SHIPPED", tmp_path / "shipped")
    store.tuned_kernel.cache_clear()
    yield
    store.tuned_kernel.cache_clear()


def test_file_is_named_after_the_gpu():
    assert store.file_name("NVIDIA H200") == "nvidia_h200.json"
    assert store.file_name("NVIDIA A100-SXM4-80GB ") == "nvidia_a100_sxm4_80gb.json"


def test_nothing_known_is_an_empty_table():
    assert store.tuned_kernel("GPU", "kernel", 1).entries == {}


def test_saved_entries_are_found_again_with_their_versions():
    table = store.tuned_kernel("GPU", "kernel", 1)
    table.record("m=1", {"block": 64})
    path = table.save()
    store.tuned_kernel.cache_clear()
    assert store.tuned_kernel("GPU", "kernel", 1).entries == {"m=1": {"block": 64}}
    made_with = json.loads(path.read_text())["kernels"]["kernel"]["made_with"]
    assert made_with.keys() == {"torch", "cuda", "date"}


def test_entries_of_an_older_kernel_are_not_used():
    table = store.tuned_kernel("GPU", "kernel", 1)
    table.record("m=1", {"block": 64})
    table.save()
    assert store.tuned_kernel("GPU", "kernel", 2).entries == {}


def test_saving_one_kernel_keeps_the_others():
    for name in ("one", "two"):
        table = store.tuned_kernel("GPU", name, 1)
        table.record("m=1", {"name": name})
        table.save()
    store.tuned_kernel.cache_clear()
    assert store.tuned_kernel("GPU", "one", 1).entries == {"m=1": {"name": "one"}}


def test_own_measurements_come_before_shipped_ones():
    shipped = store.TunedKernel("GPU", "kernel", 1, {"a": {"block": 1}, "b": {"block": 1}})
    shipped.save(store.SHIPPED / store.file_name("GPU"))
    store.TunedKernel("GPU", "kernel", 1, {"b": {"block": 2}}).save()
    assert store.tuned_kernel("GPU", "kernel", 1).entries == {"a": {"block": 1}, "b": {"block": 2}}
