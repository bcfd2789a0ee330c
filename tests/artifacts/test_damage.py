"""A stage whose files are not what was stored is named, discarded and made again; a failing maker leaves nothing."""

import errno
import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
from waiting import wait_until
from whole_calls import get_or_make

from sparsefront.artifacts import store as record
from sparsefront.artifacts.durable import whole_file
from sparsefront.artifacts.lease import hold_shared
from sparsefront.artifacts.store import ArtifactStore, remove_leftovers

WHOLE = b"weights" * 100


def store(root: Path, *runnable: str) -> ArtifactStore:
    return ArtifactStore(root, reuse=True, runnable=runnable or ("dense",))


def write(folder: Path) -> None:
    (folder / "weights").write_bytes(WHOLE)
    (folder / "epoch_weights").mkdir()
    (folder / "epoch_weights" / "epoch").write_bytes(WHOLE)


def truncate(folder: Path) -> str:
    (folder / "weights").write_bytes(WHOLE[:-1])
    return "weights has 699 bytes instead of 700"


def flip(folder: Path) -> str:
    (folder / "epoch_weights" / "epoch").write_bytes(b"W" + WHOLE[1:])
    return "epoch_weights/epoch does not hold what was stored"


def remove(folder: Path) -> str:
    (folder / "weights").unlink()
    return "weights is missing"


def tear_record(folder: Path) -> str:
    (folder / "determined_by.json").write_text('{"seconds": 1.')
    return "determined_by.json cannot be read"


def nest_record(folder: Path) -> str:
    (folder / "determined_by.json").write_text("[" * 100_000)
    return "determined_by.json cannot be read (is nested deeper than 64 levels)"


def encode_record(folder: Path) -> str:
    record = folder / "determined_by.json"
    record.write_bytes(record.read_bytes().replace(b"seconds", b"\xff"))
    return "determined_by.json cannot be read (is not UTF-8 text (byte 0xff at position 5))"


def change_seconds(folder: Path) -> str:
    record = folder / "determined_by.json"
    record.write_text(json.dumps(json.loads(record.read_text()) | {"seconds": 3.0}))
    return "determined_by.json cannot be read (it was changed after it was stored)"


def list_record(folder: Path) -> str:
    (folder / "determined_by.json").write_text("[]")
    return "determined_by.json cannot be read (it has no determined_by)"


def make_record_a_folder(folder: Path) -> str:
    (folder / "determined_by.json").unlink()
    (folder / "determined_by.json").mkdir()
    return "determined_by.json cannot be read (is a folder, not a file)"


DAMAGES = [
    truncate,
    flip,
    remove,
    tear_record,
    nest_record,
    encode_record,
    change_seconds,
    list_record,
    make_record_a_folder,
]


@pytest.fixture
def damaged(tmp_path, monkeypatch):
    """A function that stores a stage and damages it, as a later process finds it: (folder, what is said)."""

    def make(damage) -> tuple[Path, str]:
        folder = get_or_make(store(tmp_path), "dense", {}, write).path
        monkeypatch.setattr(record, "_sound", set())
        return folder, damage(folder)

    return make


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_named_and_the_stage_made_again(tmp_path, caplog, damaged, damage):
    folder, said = damaged(damage)
    with caplog.at_level(logging.INFO):
        again = get_or_make(store(tmp_path), "dense", {}, write)
    assert not again.reused and again.path == folder
    assert (folder / "weights").read_bytes() == (folder / "epoch_weights" / "epoch").read_bytes() == WHOLE
    assert f"{folder}: {said}" in caplog.text and caplog.text.count("damaged") == 1
    assert get_or_make(store(tmp_path), "dense", {}, write).reused


def test_damage_that_somebody_reads_is_left_to_them(tmp_path, damaged):
    folder, _ = damaged(flip)
    reading = hold_shared(folder)
    again = get_or_make(store(tmp_path), "dense", {}, write)
    assert again.path != folder and folder.is_dir() and (again.path / "epoch_weights" / "epoch").read_bytes() == WHOLE
    assert store(tmp_path).find("dense", {}).path == again.path
    reading.release()


@pytest.mark.parametrize("where", ["make", "os.fsync", "os.replace"])
def test_a_full_disk_leaves_nothing_half_written(tmp_path, monkeypatch, where):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def torn(folder):
        (folder / "weights").write_bytes(WHOLE[:5])
        full()

    if where != "make":
        monkeypatch.setattr(where, full)
    with pytest.raises(OSError, match="No space left"):
        get_or_make(store(tmp_path), "dense", {}, torn if where == "make" else write)
    monkeypatch.undo()
    assert not list((tmp_path / "dense").iterdir())
    assert get_or_make(store(tmp_path), "dense", {}, write).reused is False


def test_everything_is_synced_before_it_gets_its_name(tmp_path, monkeypatch):
    synced, replace = set(), os.replace

    def note(descriptor: int) -> None:
        synced.add(os.fstat(descriptor).st_ino)

    def check(source, target) -> None:
        below = [Path(source), *Path(source).rglob("*")]
        assert {path.stat().st_ino for path in below} <= synced
        synced.clear()
        replace(source, target)

    monkeypatch.setattr(os, "fsync", note)
    monkeypatch.setattr(os, "replace", check)
    folder = get_or_make(store(tmp_path), "dense", {}, write).path
    assert synced == {folder.parent.stat().st_ino}, "the rename itself"
    with whole_file(tmp_path / "page.html") as page:
        page.write_text("whole")
    assert synced == {tmp_path.stat().st_ino} and (tmp_path / "page.html").read_text() == "whole"


MAKER = """
import sys, time
from pathlib import Path
from sparsefront.artifacts.store import ArtifactStore
store = ArtifactStore(Path(sys.argv[1]), reuse=True, runnable=("dense",))
assert store.get("dense", {}) is None
with store.making("dense", {}):
    time.sleep(600)
"""


def test_the_next_run_removes_what_a_killed_one_left_and_nothing_else(tmp_path):
    maker = subprocess.Popen([sys.executable, "-c", MAKER, str(tmp_path)])
    try:
        working = wait_until(lambda: list(tmp_path.glob("dense/*.partial-*")), maker)
        unfinished = tmp_path / "dense" / "feed.unfinished"
        left = [tmp_path / "recover" / "feed.partial-1", tmp_path / "export" / "feed.removed-1"]
        for folder in (unfinished, *left):
            folder.mkdir(parents=True)
            (folder / "half").write_text("half")
        features = tmp_path / "data" / "features"
        features.mkdir(parents=True)
        left.append(features / ".partial-1-rows.safetensors")
        left[-1].write_text("half")
        assert set(remove_leftovers(tmp_path)) == set(left)
        assert working[0].is_dir() and (unfinished / "half").exists()
    finally:
        maker.kill()
        maker.wait(600)
    assert remove_leftovers(tmp_path) == working
    assert not [path for path in tmp_path.rglob("*") if "partial" in path.name or "removed" in path.name]


def test_a_setting_may_be_infinite(tmp_path):
    """As of a search without a limit: its stage is found again."""
    key = {"limit": float("inf")}
    made = get_or_make(store(tmp_path), "dense", key, write)
    record._sound.clear()
    assert get_or_make(store(tmp_path), "dense", key, write).reused and not made.reused
