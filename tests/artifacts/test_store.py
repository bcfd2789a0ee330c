"""A stage is made once, is there whole or not at all, and is never taken from those who read it, on one host or several."""

import errno
import json
import logging
import os
import shutil
import threading
import time
from itertools import count
from pathlib import Path

import pytest
from other_users import said_without_privileges
from waiting import wait_until
from whole_calls import get_or_make

from sparsefront.artifacts import durable, lease
from sparsefront.artifacts import store as stages
from sparsefront.artifacts.durable import whole_file
from sparsefront.artifacts.lease import GONE_S, LEASE_S
from sparsefront.artifacts.store import Artifact, ArtifactStore, remove_leftovers
from sparsefront.cache.inventory import read_inventory, remove
from sparsefront.errors import InvalidSetting, Obstacle

FILES = ("weights", "epoch_weights/epoch")
WHOLE = "weights" * 100


def store(root: Path, *, reuse: bool = True, runnable: tuple[str, ...] = ("dense",)) -> ArtifactStore:
    return ArtifactStore(root, reuse=reuse, runnable=runnable)


def make(root: Path, text: str = WHOLE, *, reuse: bool = False, key: dict | None = None) -> Artifact:
    def write(folder: Path) -> None:
        (folder / "epoch_weights").mkdir()
        for name in FILES:
            (folder / name).write_text(text)

    return get_or_make(store(root, reuse=reuse), "dense", key or {}, write)


def text(stage: Artifact) -> str:
    (content,) = {(stage.path / name).read_text() for name in FILES}
    return content


def folders(root: Path) -> list[str]:
    return sorted(path.name for path in (root / "dense").iterdir() if path.is_dir() and path.name[0] != ".")


ACTOR = """
import sys, time
from pathlib import Path
from sparsefront.artifacts import lease
from sparsefront.artifacts.store import ArtifactStore
root, do, host = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
if host:
    lease.host, lease.BEAT_S = lambda: host, 1e6
store = ArtifactStore(root, reuse=True, runnable=("dense",))
while (stage := store.get("dense", {})) is None:
    with store.making("dense", {}) as new:
        (new.folder / "epoch_weights").mkdir()
        for name in ("weights", "epoch_weights/epoch"):
            (new.folder / name).write_text("theirs")
        with open(root / "made.log", "a") as log:
            log.write("made\\n")
        while do == "make" and not (root / "go on").exists():
            time.sleep(0.01)
(root / "reading").touch()
while do == "read" and not (root / "go on").exists():
    time.sleep(0.01)
print((stage.path / "weights").read_text(), (stage.path / "epoch_weights" / "epoch").read_text())
"""


@pytest.fixture
def other(tmp_path, programs):
    """other(do, host="") -> a process that makes or reads the stage until there is a file `go on`, and is at it."""
    processes = []

    def start(do: str, host: str = ""):
        processes.append(programs.start(["-c", ACTOR, str(tmp_path), do, host]))
        wait_until(lambda: (tmp_path / {"make": "made.log", "read": "reading"}[do]).exists(), processes[-1])
        return processes[-1]

    yield start
    for process in processes:
        kill(process)


def kill(process) -> None:
    process.kill()
    process.wait()


def test_a_second_call_reuses_the_first(tmp_path):
    key = {"a": 1, "limit": float("inf")}  # as of a search without a limit
    made = make(tmp_path, "first", key=key)
    stages._sound.clear()
    again = make(tmp_path, "second", key=key, reuse=True)
    assert not made.reused and again.reused and text(again) == "first" and again.seconds == made.seconds
    record = json.loads((again.path / "determined_by.json").read_text())
    assert record["determined_by"] == key
    assert not make(tmp_path, "new", key=key).reused and text(store(tmp_path).find("dense", key)) == "new"


@pytest.mark.parametrize("where", ["make", "os.fsync", "os.replace"])
def test_a_maker_that_fails_leaves_nothing(tmp_path, monkeypatch, where):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def write(folder):
        (folder / "torn").write_text("half")
        if where == "make":
            full()

    if where != "make":
        monkeypatch.setattr(where, full)
    with pytest.raises(OSError, match="No space left"):
        get_or_make(store(tmp_path), "dense", {}, write)
    monkeypatch.undo()
    assert not list((tmp_path / "dense").iterdir()) and store(tmp_path).find("dense", {}) is None
    assert not (make(tmp_path).path / "torn").exists()


def test_unfinished_state_of_a_finished_stage(tmp_path):
    folder = store(tmp_path).locate_unfinished("dense", {})

    def begin(_):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "epoch.ckpt").write_text("half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        get_or_make(store(tmp_path), "dense", {}, begin)
    get_or_make(store(tmp_path), "dense", {}, lambda made: shutil.copy(folder / "epoch.ckpt", made) and None)
    assert not folder.exists()


def test_omitted_stage_must_be_there(tmp_path):
    with pytest.raises(InvalidSetting, match="stages.*add dense to stages"):
        store(tmp_path, runnable=("measure",)).get("dense", {})


def test_claimed_stage_becomes_free(tmp_path):
    with store(tmp_path) as claiming:
        assert claiming.get("dense", {}) is None
        assert store(tmp_path).is_made_elsewhere("dense", {})
    assert not store(tmp_path).is_made_elsewhere("dense", {}) and not make(tmp_path, reuse=True).reused


def test_parallel_runs_make_it_once(tmp_path, other):
    processes = [other("make") for _ in range(3)]
    (tmp_path / "go on").touch()
    assert [process.wait() for process in processes] == [0] * 3
    assert (tmp_path / "made.log").read_text() == "made\n"


def test_killed_maker_is_followed(tmp_path, other):
    kill(other("make"))
    assert store(tmp_path).find("dense", {}) is None
    assert text(make(tmp_path, reuse=True)) == WHOLE and len(folders(tmp_path)) == 1


def test_files_are_synced_before_naming(tmp_path, monkeypatch):
    synced, replace = set(), os.replace

    def check(source, target) -> None:
        assert {path.stat().st_ino for path in (Path(source), *Path(source).rglob("*"))} <= synced
        synced.clear()
        replace(source, target)

    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.add(os.fstat(descriptor).st_ino))
    monkeypatch.setattr(os, "replace", check)
    folder = make(tmp_path).path
    assert synced == {folder.parent.stat().st_ino}, "the rename itself"
    with whole_file(tmp_path / "page.html") as page:
        page.write_text("whole")
    assert synced == {tmp_path.stat().st_ino} and (tmp_path / "page.html").read_text() == "whole"


# Damage, and what killed processes left.


def edit_record(record: Path) -> None:
    record.write_text(json.dumps(json.loads(record.read_text()) | {"seconds": 3.0}))


def make_a_folder(record: Path) -> None:
    record.unlink()
    record.mkdir()


NO_RECORD = "determined_by.json cannot be read "
DAMAGES = [
    ("weights", lambda file: file.write_text(WHOLE[:-1]), "weights has 699 bytes instead of 700"),
    (
        "epoch_weights/epoch",
        lambda file: file.write_text("W" + WHOLE[1:]),
        "epoch_weights/epoch does not hold what was",
    ),
    ("weights", Path.unlink, "weights is missing"),
    ("determined_by.json", lambda file: file.write_text('{"seconds": 1.'), NO_RECORD),
    (
        "determined_by.json",
        lambda file: file.write_text("[" * 100_000),
        NO_RECORD + "(is nested deeper than 64 levels)",
    ),
    ("determined_by.json", lambda file: file.write_bytes(b'{"\xff'), NO_RECORD + "(is not UTF-8 text (byte 0xff at"),
    ("determined_by.json", edit_record, NO_RECORD + "(it was changed after it was stored)"),
    ("determined_by.json", lambda file: file.write_text("[]"), NO_RECORD + "(it has no determined_by)"),
    ("determined_by.json", make_a_folder, NO_RECORD + "(is a folder, not a file)"),
]


@pytest.mark.parametrize(("file", "damage", "message"), DAMAGES)
def test_damaged_stage_is_made_again(tmp_path, caplog, file, damage, message):
    folder = make(tmp_path).path
    stages._sound.clear()
    damage(folder / file)
    with caplog.at_level(logging.INFO):
        again = make(tmp_path, reuse=True)
    assert not again.reused and again.path == folder and text(again) == WHOLE
    assert f"{folder}: {message}" in caplog.text and caplog.text.count("damaged, and not used") == 1
    assert make(tmp_path, reuse=True).reused


def test_leftovers_of_killed_runs(tmp_path, other):
    maker = other("make")
    working = list(tmp_path.glob("dense/*.partial-*"))
    unfinished = tmp_path / "dense" / "feed.unfinished"
    left = [tmp_path / "recover" / "feed.partial-1", tmp_path / "export" / "feed.removed-1"]
    for folder in (unfinished, *left, tmp_path / "data" / "features"):
        folder.mkdir(parents=True)
        (folder / "half").touch()
    left.append(tmp_path / "data" / "features" / ".partial-1-rows.safetensors")
    left[-1].touch()
    assert set(remove_leftovers(tmp_path)) == set(left)
    assert working[0].is_dir() and (unfinished / "half").exists()
    kill(maker)
    assert remove_leftovers(tmp_path) == working
    assert not [path for path in tmp_path.rglob("*") if "partial" in path.name or "removed" in path.name]


# A stage that is made again while others read it.


@pytest.mark.parametrize("killed", [True, False])
def test_reader_keeps_what_it_opened(tmp_path, other, killed):
    name = make(tmp_path, "first").path.name
    process = other("read")
    if killed:
        kill(process)
    again = make(tmp_path, "second")
    assert text(again) == text(store(tmp_path).find("dense", {})) == "second"
    assert (folders(tmp_path) == [name]) is killed
    if not killed:
        (tmp_path / "go on").touch()
        assert process.wait() == 0 and process.text("stdout").split() == ["first", "first"]
    del again
    assert make(tmp_path, "third").path.name == name and folders(tmp_path) == [name], (
        "under its own name once none reads"
    )


STRESS = """
import os, sys, time
from pathlib import Path
from sparsefront.artifacts.store import ArtifactStore
root, seen = Path(sys.argv[1]), set()
while not (root / "enough").exists():
    artifact = ArtifactStore(root, reuse=True, runnable=()).get("dense", {})
    weights = (artifact.path / "weights").read_text()
    time.sleep(0.001)
    assert weights == (artifact.path / "epoch_weights" / "epoch").read_text()
    seen.add(weights)
    if len(seen) == 2:
        (root / f"saw two.{os.getpid()}").touch()
"""


def test_many_readers_never_miss_it(tmp_path, programs):
    """While this process and another make it again and again."""
    make(tmp_path, "start")
    readers = [programs.start(["-c", STRESS, str(tmp_path)]) for _ in range(3)]
    second = "import sys; sys.path[:0] = sys.argv[2:]; from pathlib import Path; from test_store import make\n"
    second += "for number in range(20): make(Path(sys.argv[1]), f'other {number}')"
    places = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "programs")]
    maker = programs.start(["-c", second, str(tmp_path), *places])
    numbers = count()
    while maker.poll() is None or not all((tmp_path / f"saw two.{one.pid}").exists() for one in readers):
        assert all(process.poll() is None for process in readers)
        make(tmp_path, str(next(numbers)))
        time.sleep(0.02)  # the lock is asked for again and again: who has just had it would get it at once
    assert maker.wait() == 0, maker.text("stderr")
    (tmp_path / "enough").touch()
    assert [process.wait() for process in readers] == [0, 0, 0]
    make(tmp_path, "last")
    assert len(folders(tmp_path)) == 1


def test_stage_being_removed_is_none(tmp_path):
    """Whatever its random name ends with."""
    stage = make(tmp_path, "whole").path
    shutil.copytree(stage, stage.with_name(f"{stage.name}.again-1.removed-651950868597"))
    assert stages.newest(stage) == stage


# A file system that several hosts and users share.


def test_dead_host_keeps_its_lease(tmp_path, other):
    kill(other("make", "elsewhere_0"))
    assert not remove_leftovers(tmp_path), "it may live"
    made = []
    waiting = threading.Thread(target=lambda: made.append(make(tmp_path, reuse=True)))
    waiting.start()
    waiting.join(1.0)
    assert waiting.is_alive() and not made
    (theirs,) = [file for file in tmp_path.glob("dense/.*.maker.leases/*") if "elsewhere_0" in file.name]
    os.utime(theirs, (time.time() - LEASE_S - 60,) * 2)
    waiting.join(600)
    assert text(made[0]) == WHOLE and len(folders(tmp_path)) == 1
    assert not list(tmp_path.glob("dense/.*.maker.leases"))


def test_stage_of_a_lost_lease(tmp_path, monkeypatch):
    """Its successor is still at work when the one that slept comes to its end: it waits, and uses what that one makes."""
    makers = []

    def slow(folder: Path) -> None:
        (folder / "weights").write_text("slow")
        (held,) = tmp_path.glob("dense/.*.maker.leases/*")
        held.unlink()  # as its successor does
        monkeypatch.setattr(lease, "host", lambda: "elsewhere_0")
        makers.append(make(tmp_path, reuse=True))
        monkeypatch.undo()

    stage = get_or_make(store(tmp_path), "dense", {}, slow)
    assert stage.path == makers[0].path and stage.reused and text(stage) == WHOLE


def test_stage_read_on_another_host(tmp_path, monkeypatch):
    monkeypatch.setattr(lease, "host", lambda: "elsewhere_0")
    theirs = make(tmp_path, "theirs")
    monkeypatch.undo()
    for slept_s in (0, LEASE_S + 60):
        os.utime(theirs.held.file, (time.time() - slept_s,) * 2)
        again = make(tmp_path, "ours")
        assert again.path != theirs.path and text(theirs) == "theirs"
        assert text(store(tmp_path).find("dense", {})) == "ours", "the newest counts"
    stored = [item for item in read_inventory(tmp_path).stored if item.path == theirs.path]
    assert len(stored) == 1 and remove(stored)[1] == {theirs.path: "a running process uses it"}
    os.utime(theirs.held.file, (time.time() - GONE_S - 60,) * 2)
    assert remove(stored)[0] == stored and not theirs.path.exists()


def test_cache_without_permission_to_write(tmp_path, monkeypatch):
    path = make(tmp_path).path

    def refuse(*_, **__):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(lease, "_make", refuse)
    with store(tmp_path) as reading:
        stage = reading.find("dense", {})
        assert stage.path == path and stage.held is None


@pytest.mark.parametrize("part", ["", "epoch_weights", "epoch_weights/epoch"], ids=["stage", "folder", "file"])
def test_unreadable_stage_is_one_line(tmp_path, part):
    made = make(tmp_path).path
    closed, owner = made / part, durable._name(os.geteuid())
    closed.chmod(0)

    def message() -> str:
        with pytest.raises(Obstacle) as obstacle:
            make(tmp_path, reuse=True)
        return str(obstacle.value)

    try:
        line = said_without_privileges(message)
    finally:
        closed.chmod(0o755)
    remedy = f"`chmod -R a+rX {made}` by {owner} shares it; or name another cache_dir"
    which = "it" if closed == made else closed
    assert line == f"{made}: cannot be read, since {which} belongs to {owner} with mode 000: {remedy}"
    assert store(tmp_path).find("dense", {}).reused, "nothing of it was touched"
