"""The store on a file system that several hosts share: a maker whose host died is followed, one that only slept is discarded."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from waiting import wait_until
from whole_calls import get_or_make

from sparsefront.artifacts import lease
from sparsefront.artifacts.store import ArtifactStore, remove_leftovers
from sparsefront.cache.inventory import read_inventory, remove

ELSEWHERE = """
import os, signal, sys, time
from pathlib import Path
from sparsefront.artifacts import lease; from sparsefront.artifacts import lease as owner
from sparsefront.artifacts.store import ArtifactStore
owner.host, lease.BEAT_S = lambda: "elsewhere_0", 1e6
root, do = Path(sys.argv[1]), sys.argv[2]
def make(folder):
    (folder / "weights").write_text("theirs")
    (root / "making").write_text("")
    if do == "sleep":
        while not (root / "wake").exists():
            time.sleep(0.02)
        lease.require_all()  # as at the end of an epoch
        raise AssertionError("it goes on with what is another's now")
    time.sleep(600)
store = ArtifactStore(root, reuse=True, runnable=("dense",))
while (found := store.get("dense", {})) is None:
    with store.making("dense", {}) as new:
        make(new.folder)
print((found.path / "weights").read_text(), found.reused)
"""


def store(root: Path, *, reuse: bool = True) -> ArtifactStore:
    return ArtifactStore(root, reuse=reuse, runnable=("dense",))


def ours(folder: Path) -> None:
    (folder / "weights").write_text("ours")


@pytest.fixture
def elsewhere(tmp_path):
    """A process of another host that makes the stage: `sleep` until it is woken, or `die`."""
    processes = []

    def begin(do: str) -> subprocess.Popen:
        command = [sys.executable, "-c", ELSEWHERE, str(tmp_path), do]
        processes.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
        wait_until(lambda: (tmp_path / "making").exists(), processes[-1])
        if do == "die":
            processes[-1].kill()
            processes[-1].wait(600)
        return processes[-1]

    yield begin
    for process in processes:
        process.kill()
        process.communicate()


def lapse(root: Path, seconds: float = lease.LEASE_S + 60) -> None:
    """Its last sign of life was so long ago."""
    files = [file for file in root.glob("dense/.*.maker.leases/*") if "elsewhere_0" in file.name]
    assert files
    for file in files:
        os.utime(file, (time.time() - seconds,) * 2)


def test_a_dead_host_is_waited_for_until_its_lease_lapses(tmp_path, elsewhere):
    elsewhere("die")
    assert not remove_leftovers(tmp_path), "it may live"
    made = []
    waiting = threading.Thread(target=lambda: made.append(get_or_make(store(tmp_path), "dense", {}, ours)))
    waiting.start()
    waiting.join(1.0)
    assert waiting.is_alive() and not made
    lapse(tmp_path)
    waiting.join(600)
    assert (made[0].path / "weights").read_text() == "ours"
    assert not list(tmp_path.glob("dense/*.partial-*")) and not list(tmp_path.glob("dense/.*.maker.leases"))


def test_what_was_made_under_a_lost_lease_is_never_put(tmp_path, monkeypatch):
    """Its successor is still at work when the one that slept comes to its end: it waits, and uses what that one makes."""
    root, makers = tmp_path, []

    def slow(folder: Path) -> None:
        makers.append("slow")
        (folder / "weights").write_text("slow")
        (held,) = root.glob("dense/.*.maker.leases/*")
        held.unlink()  # as its successor does
        monkeypatch.setattr(lease, "host", lambda: "elsewhere_0")
        makers.append(get_or_make(store(root), "dense", {}, ours))
        monkeypatch.undo()

    found = get_or_make(store(root), "dense", {}, slow)
    assert makers[0] == "slow" and found.path == makers[1].path and found.reused
    assert (found.path / "weights").read_text() == "ours"


def test_what_another_host_reads_is_not_removed(tmp_path, monkeypatch):
    monkeypatch.setattr(lease, "host", lambda: "elsewhere_0")
    theirs = get_or_make(store(tmp_path), "dense", {}, ours)
    monkeypatch.undo()
    again = get_or_make(store(tmp_path, reuse=False), "dense", {}, ours)
    assert again.path != theirs.path and (theirs.path / "weights").exists()
    os.utime(theirs.held.hold.file, (0, 0))
    last = get_or_make(store(tmp_path, reuse=False), "dense", {}, ours)
    assert not theirs.path.exists(), "that host is dead"
    assert store(tmp_path).find("dense", {}).path == last.path not in (again.path, theirs.path), "the newest counts"


def test_who_may_not_write_reads_all_the_same(tmp_path, monkeypatch):
    made = get_or_make(store(tmp_path), "dense", {}, ours).path

    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(lease, "_make", refuse)
    with store(tmp_path) as reading:
        found = reading.find("dense", {})
        assert found.path == made and found.held.hold is None


def test_a_stage_that_one_that_sleeps_reads_is_not_replaced(tmp_path, monkeypatch):
    monkeypatch.setattr(lease, "host", lambda: "elsewhere_0")
    theirs = get_or_make(store(tmp_path), "dense", {}, ours)
    monkeypatch.undo()
    os.utime(theirs.held.hold.file, (time.time() - lease.LEASE_S - 60,) * 2)
    again = get_or_make(store(tmp_path, reuse=False), "dense", {}, ours)
    assert again.path != theirs.path and (theirs.path / "weights").exists()
    stored = [item for item in read_inventory(tmp_path).stored if item.path == theirs.path]
    assert len(stored) == 1 and remove(stored)[1] == {theirs.path: "a running process uses it"}
    os.utime(theirs.held.hold.file, (time.time() - lease.GONE_S - 60,) * 2)
    assert remove(stored)[0] == stored
