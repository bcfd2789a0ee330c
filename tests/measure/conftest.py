"""A clock that only the timed functions move on: what is fastest does not depend on what else the machine does."""

from types import SimpleNamespace

import pytest

from sparsefront.measure import timers


class Clock:
    """Seconds that have passed by `timers.time.perf_counter`."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds

    def __deepcopy__(self, memo: dict) -> "Clock":  # copies of a network take the same time
        return self


@pytest.fixture
def clock(monkeypatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(timers, "time", SimpleNamespace(perf_counter=lambda: clock.seconds))
    return clock
