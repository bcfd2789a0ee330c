"""Files that several processes want."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from sparsefront.data.download import build_once


def test_build_once_however_many_ask(tmp_path: Path) -> None:
    target, calls, together = tmp_path / "deep" / "file", [], Barrier(4)

    def make(path: Path) -> None:
        calls.append(path)
        path.write_text("whole")

    def ask(_: int) -> str:
        together.wait()
        return build_once(target, make).read_text()

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(ask, range(4))) == ["whole"] * 4
    assert len(calls) == 1


def test_a_maker_that_dies_leaves_nothing_that_counts(tmp_path: Path) -> None:
    target = tmp_path / "file"

    def dies(path: Path) -> None:
        path.write_text("half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build_once(target, dies)
    assert not target.exists()
    assert build_once(target, lambda path: path.write_text("whole")).read_text() == "whole"


@pytest.mark.parametrize("damage", ["who", "wHole"])
def test_a_damaged_file_is_named_and_made_again(tmp_path: Path, caplog, damage: str) -> None:
    target = build_once(tmp_path / "file", lambda path: path.write_text("whole"))
    target.write_text(damage)
    assert build_once(target, lambda path: path.write_text("again")).read_text() == "again"
    assert f"{target}: file " in caplog.text and len(caplog.records) == 1
    assert build_once(target, lambda path: path.write_text("never")).read_text() == "again"
