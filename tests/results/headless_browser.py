"""Pages in a headless Chromium, driven through a pipe by its own protocol: no driver, no port, no network."""

import fcntl
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from select import select
from typing import Any

import pytest

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "chrome")
TIMEOUT_S = 600
# JavaScript by which tests look at a page and press what is in it.
COUNT = "document.querySelectorAll('{}').length"
LINES = COUNT.format("#points tbody tr")
CLICK = "document.querySelector('{}').click()"
WAIT = "new Promise((done) => setTimeout(done, 300))"


def assert_self_contained(page: str) -> None:
    assert not re.search(r"<script[^>]+src\s*=", page), "a script is loaded from elsewhere"
    assert re.findall(r'<link[^>]+href="([^"]*)"', page) == ["data:,"], "a style is loaded from elsewhere"
    assert not re.search(r"(src|href)\s*=\s*[\"']?(https?:)?//", page), "something is loaded from a network"


def find_browser() -> str | None:
    """Its path; None where none is installed."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


needs_browser = pytest.mark.skipif(
    find_browser() is None and "SPARSEFRONT_TESTS_NEED_BROWSER" not in os.environ,
    reason="no Chromium or Chrome is installed",
)


class Page:
    """One page: what it logs, what its JavaScript says, and a picture of it."""

    def __init__(self, to_browser: int, from_browser: int) -> None:
        self._to, self._from = to_browser, from_browser
        self._number, self._read = 0, b""
        self._session: str | None = None
        self.problems: list[str] = []  # errors and warnings of the console, uncaught exceptions, failed requests
        self.requests: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.call("Emulation.setDeviceMetricsOverride", width=1366, height=768, deviceScaleFactor=1, mobile=False)

    def open(self, file: Path, fragment: str = "") -> None:
        """Load a file and wait until its scripts ran."""
        self.call("Page.navigate", url="about:blank")
        self.call("Page.navigate", url=f"{file.resolve().as_uri()}{fragment}")
        loaded = (
            "document.readyState === 'complete' ? 1 : new Promise((done) => addEventListener('load', () => done(1)))"
        )
        assert self.evaluate(f"location.protocol === 'file:' ? ({loaded}) : 0") == 1

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression, awaited; an exception fails."""
        found = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command of the protocol, answered."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        message |= {} if self._session is None else {"sessionId": self._session}
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]
            self._note(answer)

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._read:
            ready, _, _ = select([self._from], [], [], TIMEOUT_S)
            assert ready, f"the browser said nothing for {TIMEOUT_S} s"
            data = os.read(self._from, 1 << 20)
            assert data, "the browser ended"
            self._read += data
        text, _, self._read = self._read.partition(b"\0")
        return json.loads(text)

    def _note(self, event: dict[str, Any]) -> None:
        method, held = event.get("method"), event.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.problems.append(str(held["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and held["type"] in ("error", "warning", "assert"):
            self.problems.append(str(held["args"]))
        elif method == "Log.entryAdded" and held["entry"]["level"] in ("error", "warning"):
            self.problems.append(held["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(held["request"]["url"])


@contextmanager
def headless_page(folder: Path) -> Iterator[Page]:
    """A page of a browser of its own, which ends with the block.

    Args:
        folder: for the browser's profile.
    """
    to_child, to_browser = os.pipe()
    from_browser, from_child = os.pipe()
    # Above 3 and 4, where the browser expects its ends of the pipes.
    ends = [fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (to_child, from_child)]
    arguments = ["--headless", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder}"]
    browser = subprocess.Popen(
        [find_browser(), *arguments],
        preexec_fn=lambda: (os.dup2(ends[0], 3), os.dup2(ends[1], 4)),
        pass_fds=(3, 4),
        env=os.environ | {"HOME": str(folder)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    for end in (to_child, from_child, *ends):
        os.close(end)
    try:
        yield Page(to_browser, from_browser)
    finally:
        browser.kill()
        browser.wait()
        os.close(to_browser)
        os.close(from_browser)
