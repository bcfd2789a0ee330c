"""Tuned parameters on disk: written, merged and read back."""

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest
from sparsefront_kernels.tuning import launches, store


@pytest.fixture(autouse=True)
def folders(tmp_path, monkeypatch):
    monkeypatch.setenv("SPARSEFRONT_KERNELS_CACHE", str(tmp_path / "user"))
    monkeypatch.setattr(store, "SHIPPED", tmp_path / "shipped")
    store.tuned_kernel.cache_clear()
    yield
    store.tuned_kernel.cache_clear()


def test_saved_entries_are_read_again():
    table = store.tuned_kernel("GPU", "kernel", 1)
    table.record("m=1", {"block": 64})
    path = table.save()
    store.tuned_kernel.cache_clear()
    assert store.tuned_kernel("GPU", "kernel", 1).entries == {"m=1": {"block": 64}}
    made_with = json.loads(path.read_text())["kernels"]["kernel"]["made_with"]
    assert made_with.keys() == {"torch", "cuda", "driver", "date"}


def test_entries_of_an_older_kernel():
    table = store.tuned_kernel("GPU", "kernel", 1)
    table.record("m=1", {"block": 64})
    table.save()
    assert store.tuned_kernel("GPU", "kernel", 2).entries == {}


def test_own_measurements_come_before_shipped_ones():
    ship({"a": {"block": 1}, "b": {"block": 1}})
    measured({"b": {"block": 2}}).save()
    assert store.tuned_kernel("GPU", "kernel", 1).entries == {"a": {"block": 1}, "b": {"block": 2}}


def ship(entries):
    measured(entries).save(store.SHIPPED / store.file_name("GPU"))


def measured(entries):
    """What a process measured that knew of nothing else."""
    table = store.TunedKernel("GPU", "kernel", 1)
    for key, parameters in entries.items():
        table.record(key, parameters)
    return table


def in_file():
    return json.loads(store.user_file("GPU").read_text())["kernels"]["kernel"]["entries"]


def test_what_another_process_measured_meanwhile_stays():
    measured({"old": {"block": 1}}).save()
    one = store.tuned_kernel("GPU", "kernel", 1)
    other = measured({"other's": {"block": 2}, "old": {"block": 3}})
    one.record("one's", {"block": 4})
    other.save()
    one.save()
    assert in_file() == {"old": {"block": 3}, "other's": {"block": 2}, "one's": {"block": 4}}


def test_parallel_saves_lose_nothing():
    with ThreadPoolExecutor(8) as pool:  # a lock of the operating system is one of each opened file
        list(pool.map(lambda number: measured({f"m={number}": {"block": number}}).save(), range(40)))
    assert len(in_file()) == 40
    assert {path.name for path in store.user_file("GPU").parent.iterdir()} == {"gpu.json", "gpu.lock"}


def test_trial_ends_with_a_measurement():
    table = store.tuned_kernel("GPU", "kernel", 1)
    table.trials["a"] = table.trials["b"] = {"block": 1}
    table.record("b", {"block": 2})
    table.save()
    assert in_file() == {"b": {"block": 2}} and table.trials.keys() == {"a"}


@pytest.mark.parametrize(
    ("made_with", "driver", "newer"),
    [
        ({"cuda": "13.0"}, "13.2", True),
        ({"cuda": "13.0", "driver": "13.2"}, "13.2", False),
        ({"cuda": "9.2"}, "13.0", True),
        ({"cuda": "13.10"}, "13.2", False),
        ({"cuda": "13.0"}, None, False),
        (None, "13.2", False),
    ],
)
def test_newer_driver_is_one_line(monkeypatch, caplog, made_with, driver, newer):
    """The shipped launches are used all the same."""
    entries = {"version": 1, "entries": {"a": {"block": 1}}} | ({"made_with": made_with} if made_with else {})
    store.SHIPPED.mkdir()
    (store.SHIPPED / store.file_name("GPU")).write_text(json.dumps({"gpu": "GPU", "kernels": {"kernel": entries}}))
    monkeypatch.setattr(store, "driver_cuda", lambda: driver)
    store._report_newer_driver.cache_clear()
    assert store.tuned_kernel("GPU", "kernel", 1).entries == {"a": {"block": 1}}
    store.tuned_kernel("GPU", "another", 1)
    assert len(caplog.messages) == newer
    if newer:
        said = f"launches for GPU were measured with CUDA {made_with['cuda']}, this driver is of {driver}"
        assert caplog.messages[0].startswith(said)


DAMAGED = {
    "cut off": '{"gpu": "GPU", "kernels": {"kernel": {"version": 1, "ent',
    "empty": "",
    "no text": "\udcff",
    "no table": "[1, 2]",
    "no kernels": '{"gpu": "GPU"}',
    "no entries": '{"kernels": {"kernel": {"version": 1}}}',
    "no parameters": '{"kernels": {"kernel": {"version": 1, "entries": {"m=1": 64}}}}',
    "no latency": '{"kernels": {"kernel": {"version": 1, "entries": {"m=1": {"latency_us": "fast"}}}}}',
}


@pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED)
def test_damaged_file_is_named_once(content, caplog):
    """What ships still counts; the next measurements take its place, and it is kept aside."""
    ship({"a": {"block": 1}})
    path = store.user_file("GPU")
    path.parent.mkdir(parents=True)
    path.write_text(content, errors="surrogateescape")
    for _ in range(2):
        store.tuned_kernel.cache_clear()
        table = store.tuned_kernel("GPU", "kernel", 1)
        assert table.entries == {"a": {"block": 1}}
    (said,) = [record.getMessage() for record in caplog.records]
    assert str(path) in said and "is ignored" in said
    table.record("b", {"block": 2})
    table.save()
    assert in_file() == {"b": {"block": 2}}
    assert path.with_name("gpu.json.damaged").read_bytes() == content.encode(errors="surrogateescape")


@dataclass(frozen=True)
class Launch:
    block: int
    name: str = "one"


@dataclass(frozen=True)
class Described:
    shape: str = "m=1 kept="
    amount: float = 4.0


def test_entries_without_a_launch():
    """A call would else raise, or hand the kernel something it cannot read."""
    kernel = launches.TunedLaunches("kernel", 1, Launch, None, worth_timing=lambda *_: [], untuned=lambda *_: Launch(0))
    wrong = {"m=1 kept=4": {"name": "two"}, "m=1 kept=5": {"block": "64"}, "m=1 kept=many": {"block": 64}}
    ship(wrong)
    assert launches.chosen_launch.__wrapped__(kernel, Described(), "GPU", 132) == Launch(0)
    ship(wrong | {"m=1 kept=100": {"block": 64, "latency_us": 2.0, "of_old": True}})
    store.tuned_kernel.cache_clear()
    assert launches.chosen_launch.__wrapped__(kernel, Described(), "GPU", 132) == Launch(64)
