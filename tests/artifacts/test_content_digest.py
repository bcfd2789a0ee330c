"""The same bytes have the same digest, wherever they lie; settings name content, not places.

What one process read is known to the next; a memo that is lost or broken costs time and nothing else.
"""

import os
from pathlib import Path

import pytest

from sparsefront.artifacts import content_digest
from sparsefront.artifacts.content_digest import DigestMemo, by_content, file_digest, path_digest, remembering


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
    path, memo, read = folder / "cats" / name, folder.parent / "memo.json", []
    real = content_digest.hashlib.file_digest
    monkeypatch.setattr(content_digest.hashlib, "file_digest", lambda *given: read.append(1) or real(*given))
    caplog.set_level("INFO")

    def as_another_process() -> str:
        content_digest._contents.clear()
        content_digest._memo.cache_clear()
        with remembering(memo):
            return path_digest(path)

    first = as_another_process()
    assert as_another_process() == first and len(read) == 1
    (folder / "cats" / "b.bin").write_bytes(b"six")
    assert as_another_process() != first and len(read) == 2
    assert len(caplog.records) == 2 * path.is_dir()


def test_a_path_in_settings_is_what_lies_there(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(folder.parent)
    (folder.parent / "fast").touch()
    settings = {"file": str(folder / "a.bin"), "more": [f"{folder}", {"near": "data/a.bin"}], "mode": "fast", "n": 2}
    found = by_content(settings)
    assert str(folder) not in str(found) and "data/a.bin" not in str(found)
    assert found["file"] == found["more"][1]["near"] == {"content": file_digest(folder / "a.bin")}
    assert (found["mode"], found["n"]) == ("fast", 2), "an option's name is no path, whatever lies here"
    monkeypatch.setenv("HOME", str(folder))
    assert by_content("~/a.bin") == found["file"]


def asked(file: Path, *keys: str) -> list[str]:
    """The keys that a new process has to find out itself."""
    memo, made = DigestMemo(file), []
    for key in keys:
        assert memo.get(key, lambda key=key: made.append(key) or f"value of {key}") == f"value of {key}"
    memo.save()
    return made


def test_what_was_made_is_found_by_later_processes(tmp_path: Path):
    file = tmp_path / "data" / "memo.json"
    assert asked(file, "a", "b", "a") == ["a", "b"]
    assert asked(file, "b", "c") == ["c"]
    assert asked(file, "a", "b", "c") == []
    assert [path.name for path in file.parent.iterdir()] == ["memo.json"]


@pytest.mark.parametrize("content", ["", "{", "[1, 2]", "\x00", "[" * 100_000, '{"b": "\\ud800"}'])
def test_a_broken_memo_is_begun_anew(tmp_path: Path, content: str):
    file = tmp_path / "memo.json"
    file.write_text(content)
    assert asked(file, "a") == ["a"]
    assert asked(file, "a") == []


def test_a_memo_that_cannot_be_written_is_no_failure(tmp_path: Path):
    (tmp_path / "data").touch()
    assert asked(tmp_path / "data" / "memo.json", "a") == ["a"]


def test_processes_at_the_same_time_keep_what_the_other_found(tmp_path: Path):
    one, other = DigestMemo(tmp_path / "memo.json"), DigestMemo(tmp_path / "memo.json")
    one.get("a", lambda: 1)
    other.get("b", lambda: 2)
    one.save()
    other.save()
    assert asked(tmp_path / "memo.json", "c") == ["c"]
    assert DigestMemo(tmp_path / "memo.json").get("a", lambda: None) == 1
