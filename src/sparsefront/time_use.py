"""What a process spends its time on, and a clock that stands still while it waits for others."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

WAITING, TRAINING, PRUNING, EVALUATION = "waiting", "training", "pruning", "evaluation"
TIMING = "timing"
"""Latencies: choosing kernels, compiling and searching execution modes included."""
ALONE = "alone"
"""The part of `TIMING` that no other process may run beside."""


@dataclass(frozen=True)
class Span:
    """Seconds of `time.monotonic`, which the processes of a host share. `detail` tells spans of a kind apart."""

    kind: str
    start: float
    end: float
    detail: str = ""

    @property
    def seconds(self) -> float:
        return self.end - self.start


@dataclass(eq=False)
class _Block:
    """A block that this process is in. `resumed`: when it began, or the last block inside it ended."""

    kind: str
    detail: str
    resumed: float


_waited_s = 0.0
_open: list[_Block] = []
_recorders: list[list[Span]] = []


def working_time() -> float:
    """Seconds of a clock that stands still while this process waits for others; only differences mean something."""
    return time.perf_counter() - _waited_s


@contextmanager
def spent_on(kind: str, detail: str = "") -> Iterator[None]:
    """Account for the block; one inside it counts for itself. Time in `WAITING` is none of `working_time`. For one thread."""
    global _waited_s
    block = _Block(kind, detail, _interrupt())
    _open.append(block)
    start = time.perf_counter()
    try:
        yield
    finally:
        now = time.monotonic()
        _note(block, now)
        _open.remove(block)
        if kind == WAITING and all(outer.kind != WAITING for outer in _open):
            _waited_s += time.perf_counter() - start
        if _open:
            _open[-1].resumed = now


@contextmanager
def recorded() -> Iterator[list[Span]]:
    """Gives the list of what this process spends its time on in the block; what is in no `spent_on` is in no span."""
    spans: list[Span] = []
    _recorders.append(spans)
    try:
        yield spans
    finally:
        _recorders.remove(spans)


def _interrupt() -> float:
    """Close the span of the block that another one begins in; returns when."""
    now = time.monotonic()
    if _open:
        _note(_open[-1], now)
    return now


def _note(block: _Block, now: float) -> None:
    for spans in _recorders:
        spans.append(Span(block.kind, block.resumed, now, block.detail))
