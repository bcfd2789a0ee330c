"""The network is given up on in time."""

import threading
import urllib.error
from typing import Any

import pytest

from sparsefront.data import download
from sparsefront.errors import InvalidSetting


def ask(monkeypatch: pytest.MonkeyPatch, answer: Any) -> None:
    monkeypatch.setattr(download.urllib.request, "urlopen", answer)
    download.require_reachable("https://data.example", missing="set dataset.path to a folder")


def raising(error: Exception) -> Any:
    def answer(*_: object, **__: object) -> None:
        raise error

    return answer


def test_no_route(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        InvalidSetting, match=r"path=None: .*data.example cannot be reached \(no route\); set dataset.path"
    ):
        ask(monkeypatch, raising(urllib.error.URLError("no route")))


def test_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "ANSWER_TIMEOUT_S", 0.1)
    asked_enough = threading.Event()
    with pytest.raises(InvalidSetting, match="no answer within 0.1 s"):
        ask(monkeypatch, lambda *_, **__: asked_enough.wait(600) and open("/dev/null"))
    asked_enough.set()
