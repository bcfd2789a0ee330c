"""A stage that is made again takes nothing from those who read it, and leaves nothing behind once they are gone."""

import shutil
import time
from itertools import count
from pathlib import Path

from program_server import Program, ProgramServer
from waiting import wait_until
from whole_calls import get_or_make

from sparsefront.artifacts.store import Artifact, ArtifactStore

FILES = ("masks.txt", "weights.txt")


def store(root: Path, *, reuse: bool = True) -> ArtifactStore:
    return ArtifactStore(root, reuse=reuse, runnable=("dense",))


def make(root: Path, text: str, *, reuse: bool = False) -> Artifact:
    def write(folder: Path) -> None:
        for name in FILES:
            (folder / name).write_text(text)

    return get_or_make(store(root, reuse=reuse), "dense", {}, write)


def content(artifact: Artifact) -> set[str]:
    return {(artifact.path / name).read_text() for name in FILES}


def folders(root: Path) -> list[str]:
    return sorted(path.name for path in (root / "dense").iterdir() if path.is_dir() and path.name[0] != ".")


READER = """
import sys, time
from pathlib import Path
from sparsefront.artifacts.store import ArtifactStore
root = Path(sys.argv[1])
artifact = ArtifactStore(root, reuse=True, runnable=()).find("dense", {})
(root / "reading").write_text("")
while not (root / "read on").exists():
    time.sleep(0.01)
print(*[(artifact.path / name).read_text() for name in ("masks.txt", "weights.txt")])
"""


def reader(programs: ProgramServer, root: Path) -> Program:
    """A process that finds the stage now and opens its files when there is a file `read on`; back when it has found it."""
    process = programs.start(["-c", READER, str(root)])
    wait_until(lambda: (root / "reading").exists(), process)
    return process


def test_another_process_that_reads_keeps_what_it_found(tmp_path, programs):
    make(tmp_path, "first")
    process = reader(programs, tmp_path)
    again = make(tmp_path, "second")  # made again while the other has opened no file yet
    assert content(again) == {"second"} and content(store(tmp_path).find("dense", {})) == {"second"}
    (tmp_path / "read on").touch()
    assert process.wait() == 0 and process.text("stdout").split() == ["first", "first"]


def test_what_nobody_reads_is_replaced_under_its_own_name(tmp_path):
    name = make(tmp_path, "first").path.name
    for text in ("second", "third"):
        assert make(tmp_path, text).path.name == name
        assert folders(tmp_path) == [name]
    assert content(store(tmp_path).find("dense", {})) == {"third"}


def test_a_reader_that_was_killed_holds_nothing(tmp_path, programs):
    make(tmp_path, "first")
    process = reader(programs, tmp_path)
    process.kill()
    process.wait(600)
    name = make(tmp_path, "second").path.name
    assert folders(tmp_path) == [name]


STRESS = """
import os, sys, time
from pathlib import Path
from sparsefront.artifacts.store import ArtifactStore
root, found = Path(sys.argv[1]), set()
while not (root / "enough").exists():
    artifact = ArtifactStore(root, reuse=True, runnable=()).get("dense", {})
    masks = (artifact.path / "masks.txt").read_text()
    time.sleep(0.001)
    weights = (artifact.path / "weights.txt").read_text()
    assert masks == weights, (masks, weights)
    found.add(masks)
    if len(found) == 2:
        (root / f"saw two.{os.getpid()}").touch()
"""


def test_many_readers_never_miss_it_nor_see_two_halves(tmp_path, programs):
    """While this process and another make it again and again."""
    make(tmp_path, "start")
    readers = [programs.start(["-c", STRESS, str(tmp_path)]) for _ in range(3)]
    second = "import sys; sys.path[:0] = sys.argv[2:]; from pathlib import Path; from test_generations import make\n"
    second += "for number in range(20): make(Path(sys.argv[1]), f'other {number}')"
    places = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "programs")]
    other = programs.start(["-c", second, str(tmp_path), *places])
    numbers = count()
    while other.poll() is None or not all((tmp_path / f"saw two.{one.pid}").exists() for one in readers):
        assert all(process.poll() is None for process in readers)
        make(tmp_path, str(next(numbers)))
        time.sleep(0.02)  # the lock is asked for again and again: who has just had it would get it at once
    assert other.wait() == 0, other.text("stderr")
    (tmp_path / "enough").touch()
    assert [process.wait() for process in readers] == [0, 0, 0]
    make(tmp_path, "last")
    assert len(folders(tmp_path)) == 1


def test_a_file_under_the_name_of_a_stage_makes_room_for_it(tmp_path):
    made = make(tmp_path, "first")
    key = made.path.name
    del made
    shutil.rmtree(tmp_path / "dense" / key)
    (tmp_path / "dense" / key).write_text("somebody's")
    assert content(make(tmp_path, "second", reuse=True)) == {"second"}
