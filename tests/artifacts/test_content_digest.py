"""The same bytes have the same digest, wherever they lie; settings name content, not places."""

import os
from pathlib import Path

import pytest

from sparsefront.artifacts import content_digest
from sparsefront.artifacts.content_digest import by_content, file_digest, listing_digest, path_digest, remembering


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "data" / "cats").mkdir(parents=True)
    (tmp_path / "data" / "a.bin").write_bytes(b"one")
    (tmp_path / "data" / "cats" / "b.bin").write_bytes(b"two")
    return tmp_path / "data"


def test_a_moved_folder_is_the_same_and_an_edited_one_is_not(folder: Path):
    whole, listing = path_digest(folder), listing_digest(folder)
    moved = folder.rename(folder.with_name("moved"))
    assert (path_digest(moved), listing_digest(moved)) == (whole, listing)
    (moved / "cats" / "b.bin").write_bytes(b"six")
    assert path_digest(moved) != whole and listing_digest(moved) == listing
    (moved / "cats" / "b.bin").write_bytes(b"seven")
    assert listing_digest(moved) != listing


def test_large_folders_count_by_their_listing(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(content_digest, "READ_AT_MOST", 6)
    assert path_digest(folder) == listing_digest(folder)


def test_a_long_listing_is_made_once_until_files_come_or_go(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(content_digest, "MANY", 2)
    before = listing_digest(folder)
    os.utime(folder / "cats", ns=(1, 1))
    assert listing_digest(folder) == before
    with monkeypatch.context() as patch:
        patch.setattr(content_digest, "_sizes", lambda folders: pytest.fail("listed again"))
        assert listing_digest(folder) == before
    (folder / "cats" / "c.bin").touch()
    assert listing_digest(folder) != before


def test_folders_behind_links_count_once(folder: Path, tmp_path: Path):
    before = listing_digest(folder)
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "c.bin").touch()
    (folder / "more").symlink_to(tmp_path / "more")
    linked = listing_digest(folder)
    assert linked != before
    (tmp_path / "more" / "back").symlink_to(folder)  # a circle ends
    assert listing_digest(folder) == linked


def test_a_large_file_is_read_by_one_process_and_again_once_it_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(content_digest, "LARGE", 1)
    monkeypatch.setattr(content_digest, "SETTLED_NS", 0)
    file, memo, read = tmp_path / "weights.bin", tmp_path / "memo.json", []
    real = content_digest.hashlib.file_digest
    monkeypatch.setattr(content_digest.hashlib, "file_digest", lambda *given: read.append(1) or real(*given))

    def as_another_process() -> str:
        content_digest._read_digest.cache_clear()
        with remembering(memo):
            return file_digest(file)

    file.write_bytes(b"one")
    first = as_another_process()
    assert as_another_process() == first and len(read) == 1
    file.write_bytes(b"two")
    assert as_another_process() != first and len(read) == 2


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
