"""A stage that is made again takes nothing from those who read it, and leaves nothing behind once they are gone."""

import shutil
import time
from pathlib import Path

from program_server import Program, ProgramServer
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
time.sleep(float(sys.argv[2]))
print(*[(artifact.path / name).read_text() for name in ("masks.txt", "weights.txt")])
"""


def reader(programs: ProgramServer, root: Path, seconds: float) -> Program:
    """A process that finds the stage now and opens its files later; back when it has found it."""
    (root / "reading").unlink(missing_ok=True)
    process = programs.start(["-c", READER, str(root), str(seconds)])
    deadline = time.monotonic() + 60
    while not (root / "reading").exists():
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)
    return process


def test_another_process_that_reads_keeps_what_it_found(tmp_path, programs):
    make(tmp_path, "first")
    process = reader(programs, tmp_path, 1.0)
    again = make(tmp_path, "second")
    assert process.poll() is None, "made again while the other had opened no file yet"
    assert content(again) == {"second"} and content(store(tmp_path).find("dense", {})) == {"second"}
    assert process.wait(60) == 0 and process.text("stdout").split() == ["first", "first"]


def test_the_same_run_keeps_what_it_found(tmp_path):
    first = make(tmp_path, "first")
    second = make(tmp_path, "second")
    assert content(first) == {"first"} and content(second) == {"second"}
    assert content(store(tmp_path).find("dense", {})) == {"second"}


def test_what_nobody_reads_is_replaced_under_its_own_name(tmp_path):
    name = make(tmp_path, "first").path.name
    for text in ("second", "third"):
        assert make(tmp_path, text).path.name == name
        assert folders(tmp_path) == [name]
    assert content(store(tmp_path).find("dense", {})) == {"third"}


def test_nothing_is_left_behind_once_the_readers_are_gone(tmp_path):
    readers = [make(tmp_path, str(number)) for number in range(4)]
    assert len(folders(tmp_path)) == 4 and [content(one) for one in readers] == [{str(n)} for n in range(4)]
    name = readers[0].path.name
    del readers
    last = make(tmp_path, "last")
    assert folders(tmp_path) == [name] and last.path.name == name and content(last) == {"last"}


def test_a_reader_that_was_killed_holds_nothing(tmp_path, programs):
    make(tmp_path, "first")
    process = reader(programs, tmp_path, 60)
    process.kill()
    process.wait(30)
    name = make(tmp_path, "second").path.name
    assert folders(tmp_path) == [name]


def test_a_folder_without_its_record_is_no_stage(tmp_path):
    path = make(tmp_path, "first").path
    (path / "determined_by.json").unlink()
    assert store(tmp_path).find("dense", {}) is None
    assert make(tmp_path, "second", reuse=True).path == path and folders(tmp_path) == [path.name]


STRESS = """
import sys, time
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
print(len(found))
"""


def test_many_readers_never_miss_it_nor_see_two_halves(tmp_path, programs):
    """While this process and another make it again and again."""
    make(tmp_path, "start")
    readers = [programs.start(["-c", STRESS, str(tmp_path)]) for _ in range(3)]
    second = "import sys; sys.path[:0] = sys.argv[2:]; from pathlib import Path; from test_generations import make\n"
    second += "for number in range(20): make(Path(sys.argv[1]), f'other {number}')"
    places = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "programs")]
    other = programs.start(["-c", second, str(tmp_path), *places])
    enough, deadline = time.monotonic() + 1.5, time.monotonic() + 60
    number = 0
    while time.monotonic() < enough or (time.monotonic() < deadline and other.poll() is None):
        make(tmp_path, str(number))
        number += 1
        time.sleep(0.02)  # the lock is asked for again and again: who has just had it would get it at once
    assert other.wait(60) == 0, other.text("stderr")
    (tmp_path / "enough").write_text("")
    assert [process.wait(60) for process in readers] == [0, 0, 0]
    assert sum(int(process.text("stdout")) for process in readers) > 3, "readers saw several of them"
    make(tmp_path, "last")
    assert len(folders(tmp_path)) == 1


def test_a_file_under_the_name_of_a_stage_makes_room_for_it(tmp_path):
    made = make(tmp_path, "first")
    key = made.path.name
    del made
    shutil.rmtree(tmp_path / "dense" / key)
    (tmp_path / "dense" / key).write_text("somebody's")
    assert content(make(tmp_path, "second", reuse=True)) == {"second"}
