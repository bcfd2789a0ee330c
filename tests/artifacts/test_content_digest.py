"""The same bytes have the same digest, wherever they lie; settings name content, not places.

What one process read is known to the next; a memo that is lost or broken costs time and nothing else.
"""

import os
from pathlib import Path

import pytest

from sparsefront.artifacts import content_digest
from sparsefront.artifacts.content_digest import by_content, digest, file_digest, load_or_make, path_digest, remembering


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "data" / "cats").mkdir(parents=True)
    (tmp_path / "data" / "a.bin").write_bytes(b"one")
    (tmp_path / "data" / "cats" / "b.bin").write_bytes(b"two")
    return tmp_path / "data"


def test_folder_digests_follow_content(folder: Path, monkeypatch: pytest.MonkeyPatch):
    """A moved folder is the same; equal names, sizes and times of modification hide no edit, at any age of the files."""
    for settled_ns in (content_digest.SETTLED_NS, 0):
        monkeypatch.setattr(content_digest, "SETTLED_NS", settled_ns)
        before = path_digest(folder)
        folder = folder.rename(folder.with_name(f"moved-{settled_ns}"))
        assert path_digest(folder) == before
        file, times = folder / "cats" / "b.bin", (folder / "cats" / "b.bin").stat()
        file.write_bytes(file.read_bytes()[::-1])
        os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
        assert path_digest(folder) != before
        (folder / "cats" / "c.bin").touch()
        assert path_digest(folder) != before


@pytest.mark.parametrize("name", ["", "b.bin"])
def test_processes_read_unchanged_content_once(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch, caplog):
    for limit, value in (("LARGE", 1), ("LONG", 1), ("SETTLED_NS", 0)):
        monkeypatch.setattr(content_digest, limit, value)
    path, memo, reads = folder / "cats" / name, folder.parent / "memo.json", []
    real = content_digest.hashlib.file_digest
    monkeypatch.setattr(content_digest.hashlib, "file_digest", lambda *values: reads.append(1) or real(*values))
    caplog.set_level("INFO")

    def as_another_process() -> str:
        content_digest._contents.clear()
        with remembering(memo):
            return path_digest(path)

    first = as_another_process()
    assert as_another_process() == first and len(reads) == 1
    (folder / "cats" / "b.bin").write_bytes(b"six")
    assert as_another_process() != first and len(reads) == 2
    assert len(caplog.records) == 2 * path.is_dir()


def test_path_in_settings_is_its_content(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(folder.parent)
    (folder.parent / "fast").touch()
    settings = {"file": str(folder / "a.bin"), "more": [f"{folder}", {"near": "data/a.bin"}], "mode": "fast", "n": 2}
    found = by_content(settings)
    assert str(folder) not in str(found) and "data/a.bin" not in str(found)
    assert found["file"] == found["more"][1]["near"] == {"content": file_digest(folder / "a.bin")}
    assert (found["mode"], found["n"]) == ("fast", 2), "an option's name is no path, whatever lies here"
    monkeypatch.setenv("HOME", str(folder))
    assert by_content("~/a.bin") == found["file"]


def made(file: Path, *keys: str) -> list[str]:
    """The keys that a new process has to find out itself."""
    missing = []
    with remembering(file):
        for key in keys:
            assert load_or_make(key, lambda key=key: missing.append(key) or f"value of {key}") == f"value of {key}"
    return missing


def test_later_processes_know_what_was_made(tmp_path: Path):
    file = tmp_path / "data" / "memo.json"
    assert made(file, "a", "b", "a") == ["a", "b"]
    assert made(file, "b", "c") == ["c"]
    with remembering(file):  # another process meanwhile
        assert load_or_make("e", lambda: 1) == 1
        assert made(file, "a", "d") == ["d"]
    assert made(file, "a", "b", "c", "d") == []
    assert [path.name for path in file.parent.iterdir()] == ["memo.json"]


@pytest.mark.parametrize("content", ["", "{", "[1, 2]", "\x00", "[" * 100_000, '{"b": "\\ud800"}'])
def test_a_broken_memo_is_begun_anew(tmp_path: Path, content: str):
    file = tmp_path / "memo.json"
    file.write_text(content)
    assert made(file, "a") == ["a"]
    assert made(file, "a") == []


def test_digests_ignore_order_and_nothing_else():
    assert digest({"a": 1, "b": [1, 2]}) == digest({"b": [1, 2], "a": 1})
    assert len({digest({"a": value}) for value in (1, 1.5, [1, 2], [2, 1])}) == 4
