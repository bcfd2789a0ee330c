"""Files that several processes want."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from sparsefront.datasets.made_once import made_once


def test_made_once_however_many_ask(tmp_path: Path) -> None:
    target, calls, together = tmp_path / "deep" / "file", [], Barrier(4)

    def make(path: Path) -> None:
        calls.append(path)
        path.write_text("whole")

    def ask(_: int) -> str:
        together.wait()
        return made_once(target, make).read_text()

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(ask, range(4))) == ["whole"] * 4
    assert len(calls) == 1


def test_a_maker_that_dies_leaves_nothing_that_counts(tmp_path: Path) -> None:
    target = tmp_path / "file"

    def dies(path: Path) -> None:
        path.write_text("half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        made_once(target, dies)
    assert not target.exists()
    assert made_once(target, lambda path: path.write_text("whole")).read_text() == "whole"
