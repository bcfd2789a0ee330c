"""The network is given up on in time; files that several processes want are made once."""

import urllib.error
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest

from sparsefront.data import download
from sparsefront.data.download import build_once
from sparsefront.errors import InvalidSetting


def ask(monkeypatch: pytest.MonkeyPatch, answer: Any) -> None:
    monkeypatch.setattr(download.urllib.request, "urlopen", answer)
    download.require_reachable("https://data.example", missing="set dataset.path to a folder")


def raising(error: Exception) -> Any:
    def answer(*_: object, **__: object) -> None:
        raise error

    return answer


def test_hub_without_a_route(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        InvalidSetting, match=r"path=None: .*data.example cannot be reached \(no route\); set dataset.path"
    ):
        ask(monkeypatch, raising(urllib.error.URLError("no route")))


def test_file_is_built_once(tmp_path: Path) -> None:
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


def test_maker_that_dies(tmp_path: Path) -> None:
    target = tmp_path / "file"

    def dies(path: Path) -> None:
        path.write_text("half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build_once(target, dies)
    assert not target.exists()
    assert build_once(target, lambda path: path.write_text("whole")).read_text() == "whole"


@pytest.mark.parametrize("damage", ["who", "wHole"])
def test_damaged_file_is_made_again(tmp_path: Path, caplog, damage: str) -> None:
    target = build_once(tmp_path / "file", lambda path: path.write_text("whole"))
    target.write_text(damage)
    assert build_once(target, lambda path: path.write_text("again")).read_text() == "again"
    assert f"{target}: file " in caplog.text and len(caplog.records) == 1
    assert build_once(target, lambda path: path.write_text("never")).read_text() == "again"
