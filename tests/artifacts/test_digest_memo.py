"""What one process read is known to the next; a memo that is lost or broken costs time and nothing else."""

from pathlib import Path

import pytest

from sparsefront.artifacts import content_digest
from sparsefront.artifacts.content_digest import DigestMemo, remembered, remembering


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


def test_a_memo_does_not_grow_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(content_digest, "MOST", 3)
    asked(tmp_path / "memo.json", "a", "b", "c")
    asked(tmp_path / "memo.json", "d")
    assert asked(tmp_path / "memo.json", "d", "a") == ["a"]


def test_processes_at_the_same_time_keep_what_the_other_found(tmp_path: Path):
    one, other = DigestMemo(tmp_path / "memo.json"), DigestMemo(tmp_path / "memo.json")
    one.get("a", lambda: 1)
    other.get("b", lambda: 2)
    one.save()
    other.save()
    assert asked(tmp_path / "memo.json", "c") == ["c"]
    assert DigestMemo(tmp_path / "memo.json").get("a", lambda: None) == 1


def test_outside_nothing_is_kept(tmp_path: Path):
    with remembering(tmp_path / "memo.json"):
        assert remembered("a", lambda: 1) == 1
        assert remembered("a", lambda: 2) == 1
    assert remembered("a", lambda: 3) == 3
