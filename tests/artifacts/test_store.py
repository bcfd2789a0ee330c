"""A stage is made once, is there whole or not at all, and survives a killed maker."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from waiting import wait_until
from whole_calls import get_or_make

from sparsefront.artifacts.content_digest import digest
from sparsefront.artifacts.store import ArtifactStore
from sparsefront.errors import InvalidSetting

STAGES = ("dense", "prune")


def store(root: Path, **overrides) -> ArtifactStore:
    return ArtifactStore(root, **({"reuse": True, "runnable": STAGES} | overrides))


def writer(text: str):
    def write(folder: Path) -> None:
        (folder / "content.txt").write_text(text)

    return write


def test_second_call_reuses_the_first(tmp_path):
    made = get_or_make(store(tmp_path), "dense", {"a": 1}, writer("first"))
    found = get_or_make(store(tmp_path), "dense", {"a": 1}, writer("second"))
    assert not made.reused and found.reused
    assert (found.path / "content.txt").read_text() == "first"
    assert found.seconds == made.seconds
    assert json.loads((found.path / "determined_by.json").read_text())["determined_by"] == {"a": 1}


def test_without_reuse_the_stage_is_replaced(tmp_path):
    get_or_make(store(tmp_path), "dense", {}, writer("old"))
    again = get_or_make(store(tmp_path, reuse=False), "dense", {}, writer("new"))
    assert not again.reused
    assert (again.path / "content.txt").read_text() == "new"


def test_a_failing_maker_leaves_nothing_finished(tmp_path):
    def fail(folder):
        (folder / "torn.txt").write_text("half")
        raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError):
        get_or_make(store(tmp_path), "dense", {}, fail)
    assert store(tmp_path).find("dense", {}) is None
    whole = get_or_make(store(tmp_path), "dense", {}, writer("whole"))
    assert not (whole.path / "torn.txt").exists()
    assert not list(tmp_path.glob("dense/*.partial-*"))


def test_what_a_maker_leaves_for_the_next_one_is_gone_when_the_stage_is_finished(tmp_path):
    folder = store(tmp_path).unfinished("dense", {})

    def begin(_):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "epoch.ckpt").write_text("half")
        raise KeyboardInterrupt

    def go_on(made):
        assert (folder / "epoch.ckpt").read_text() == "half"
        (made / "content.txt").write_text("whole")

    with pytest.raises(KeyboardInterrupt):
        get_or_make(store(tmp_path), "dense", {}, begin)
    get_or_make(store(tmp_path), "dense", {}, go_on)
    assert not folder.exists()


def test_a_stage_left_out_must_be_there(tmp_path):
    with pytest.raises(InvalidSetting, match="stages.*add dense to stages"):
        get_or_make(store(tmp_path, runnable=("measure",)), "dense", {}, writer(""))


CHILD = """
import sys, time
from pathlib import Path
from sparsefront.artifacts.store import ArtifactStore
root, seconds = Path(sys.argv[1]), float(sys.argv[2])
store = ArtifactStore(root, reuse=True, runnable=("dense",))
while (artifact := store.get("dense", {})) is None:
    with store.making("dense", {}) as new:
        (new.folder / "started").write_text("")
        with open(root / "made.log", "a") as log:
            log.write("made\\n")
        time.sleep(seconds)
        (new.folder / "content.txt").write_text("whole")
assert (artifact.path / "content.txt").read_text() == "whole"
"""


def child(root: Path, seconds: float) -> subprocess.Popen:
    return subprocess.Popen([sys.executable, "-c", CHILD, str(root), str(seconds)])


def test_parallel_runs_make_it_once(tmp_path):
    children = [child(tmp_path, 0.5) for _ in range(4)]
    assert [process.wait(600) for process in children] == [0] * 4
    assert (tmp_path / "made.log").read_text() == "made\n"


def test_a_stage_that_was_claimed_and_not_made_is_free_when_the_run_ends(tmp_path):
    with store(tmp_path) as claiming:
        assert claiming.get("dense", {}) is None
        assert store(tmp_path).is_made_elsewhere("dense", {})
    assert not store(tmp_path).is_made_elsewhere("dense", {})
    assert not get_or_make(store(tmp_path), "dense", {}, writer("mine")).reused


def test_a_killed_maker_is_followed_by_a_whole_stage(tmp_path):
    killed = child(tmp_path, 600)
    wait_until(lambda: list(tmp_path.glob("dense/*.partial-*/started")), killed)
    os.kill(killed.pid, signal.SIGKILL)
    killed.wait(600)
    assert store(tmp_path).find("dense", {}) is None
    assert child(tmp_path, 0).wait(600) == 0
    assert not list(tmp_path.glob("dense/*.partial-*"))


def test_digest_ignores_order_and_nothing_else():
    assert digest({"a": 1, "b": [1, 2]}) == digest({"b": [1, 2], "a": 1})
    assert digest({"a": 1}) != digest({"a": 1.5})
    assert digest({"a": [1, 2]}) != digest({"a": [2, 1]})
