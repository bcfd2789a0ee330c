"""The same bytes have the same digest, wherever they lie; settings name content, not places."""

import os
from pathlib import Path

import pytest

from sparsefront.artifacts import content_digest
from sparsefront.artifacts.content_digest import by_content, file_digest, path_digest, remembering


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


def test_folders_behind_links_count_once(folder: Path, tmp_path: Path):
    before = path_digest(folder)
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "c.bin").touch()
    (folder / "more").symlink_to(tmp_path / "more")
    linked = path_digest(folder)
    assert linked != before
    (tmp_path / "more" / "back").symlink_to(folder)  # a circle ends
    assert path_digest(folder) == linked


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


@pytest.mark.parametrize("text", ["owner/name", "none.such", "", "a" * 5000 + "/b", "nul\0/b", "~nobody-here/x", "2.5"])
def test_what_leads_nowhere_stays_text(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    assert by_content({"a": text}) == {"a": text}
