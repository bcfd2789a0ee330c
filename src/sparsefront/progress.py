"""Progress bars, output that cannot fail a run, plurals in messages, and a clock that excludes waiting."""

import os
import select
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from typing import Any, TextIO

from tqdm import tqdm


def counted(number: int | str, noun: str) -> str:
    """A number with its noun, in the plural unless it is 1: `1 run`, `2 runs`, `0.5 epochs`, `3 batches`."""
    ending = "es" if noun.endswith("batch") else "s"
    return f"{number} {noun}" + ("" if str(number) == "1" else ending)


def reasons_text(reasons: Mapping[str, str]) -> str:
    """Counts of distinct reasons, most common first: `2 × it has no mask; 1 × ...`."""
    return "; ".join(f"{count} × {why}" for why, count in Counter(reasons.values()).most_common())


# A run continues if its output cannot be shown, since its result is stored.


class _SafeStream:
    """A text stream whose writes never raise: unencodable characters become `?`, and failed writes are dropped."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with suppress(OSError, ValueError):  # a broken pipe, a full disk, a closed stream
            try:
                self._stream.write(text)
            except UnicodeEncodeError:
                encoding = getattr(self._stream, "encoding", None) or "ascii"
                self._stream.write(text.encode(encoding, errors="replace").decode(encoding))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        with suppress(OSError, ValueError):
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def ignore_output_errors() -> Iterator[None]:
    """Make stdout and stderr inside the context ignore errors: a broken pipe, a full disk, unencodable characters (`?`)."""
    with ExitStack() as streams:
        for stream, redirect in ((sys.stdout, redirect_stdout), (sys.stderr, redirect_stderr)):
            if stream is None:  # closed before the program started
                stream = streams.enter_context(open(os.devnull, "w", encoding="utf-8"))
            streams.enter_context(redirect(stream if isinstance(stream, _SafeStream) else _SafeStream(stream)))
        yield


# A program whose output is no longer read, as in `python compare.py | head`, ends quietly.

READER_GONE = 1  # exit status, as of rich, which prints the tables


@contextmanager
def exit_quietly_on_broken_pipe() -> Iterator[None]:
    """Context or decorator for a `main`: exit quietly if stdout is a broken pipe; unencodable characters become `?`.

    Raises:
        SystemExit: with READER_GONE.
    """
    for stream in (sys.stdout, sys.stderr):
        if getattr(stream, "errors", None) in ("strict", "surrogateescape") and hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    try:
        try:
            yield
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()  # here, since Python would report the error at exit
    except BrokenPipeError:
        if not _reader_is_gone():  # another pipe than standard output
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for buffered output
        raise SystemExit(READER_GONE) from None


def _reader_is_gone() -> bool:
    poll = select.poll()
    try:
        poll.register(sys.stdout.fileno(), 0)
    except OSError:  # a replaced sys.stdout may have no file
        return False
    return any(events & select.POLLERR for _, events in poll.poll(0))


# Accounting of a process's time, and a clock that stops while it waits for others.

WAITING, TRAINING, PRUNING, EVALUATION = "waiting", "training", "pruning", "evaluation"
TIMING = "timing"
"""Latency measurements, without the search for what is timed."""
SEARCH = "search"
"""The choice of kernels, compilation and the search for execution modes."""
ALONE = "alone"
"""The part of `TIMING` or `SEARCH`, which is its detail, with exclusive use of the GPU."""


@dataclass(frozen=True)
class Span:
    """An interval of `time.monotonic`, which all processes of a host share. `detail` distinguishes spans of one kind."""

    kind: str
    start: float
    end: float
    detail: str = ""

    @property
    def seconds(self) -> float:
        return self.end - self.start


@dataclass(eq=False)
class _Block:
    """An open `track_time` block. `resumed`: when it began, or its last inner block ended."""

    kind: str
    detail: str
    resumed: float


_waited_s = 0.0
_open: list[_Block] = []
_recorders: list[list[Span]] = []


def working_time() -> float:
    """Seconds of a clock that stops while this process waits for others; only differences are meaningful."""
    return time.perf_counter() - _waited_s


@contextmanager
def track_time(kind: str, detail: str = "") -> Iterator[None]:
    """Account the time of a block, without inner blocks; `WAITING` does not count in `working_time`. Not thread-safe."""
    global _waited_s
    begin = time.monotonic()
    if _open:  # the current block's span ends before an inner block
        _note(_open[-1], begin)
    block = _Block(kind, detail, begin)
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
def record_spans() -> Iterator[list[Span]]:
    """Record the spans of all `track_time` blocks inside the context."""
    spans: list[Span] = []
    _recorders.append(spans)
    try:
        yield spans
    finally:
        _recorders.remove(spans)


def seconds_of(spans: Iterable[Span], kind: str) -> float:
    """Seconds of all spans of a kind, including its part with exclusive use of the GPU."""
    return sum(span.seconds for span in spans if kind == (span.detail if span.kind == ALONE else span.kind))


def innermost_kind() -> str:
    """The kind of the innermost open `track_time` block; empty if there is none."""
    return _open[-1].kind if _open else ""


def _note(block: _Block, now: float) -> None:
    for spans in _recorders:
        spans.append(Span(block.kind, block.resumed, now, block.detail))


_shown: bool | None = None  # None: not set by `showing`


def bar(
    iterable: Iterable | None = None,
    *,
    description: str,
    total: int | None = None,
    unit: str = "it",
    leave: bool = False,
) -> tqdm:
    """A tqdm bar on stderr, disabled unless `shows()`.

    Args:
        total: number of steps; None = the length of the iterable.
        leave: keep the bar when it ends.
    """
    return tqdm(
        iterable, desc=description, total=total, unit=unit, leave=leave, disable=not shows(), dynamic_ncols=True
    )


def shows() -> bool:
    """Whether this process shows bars: only rank 0, on a terminal or in a notebook unless `showing` overrides that."""
    from sparsefront import distributed  # here, since it imports torch, and settings import this module

    enabled = (sys.stderr.isatty() or "ipykernel" in sys.modules) if _shown is None else _shown
    return enabled and distributed.rank() == 0


@contextmanager
def showing(wanted: bool | None) -> Iterator[None]:
    """Show bars inside the context, or not; None: on a terminal or in a notebook."""
    global _shown
    before, _shown = _shown, wanted
    try:
        yield
    finally:
        _shown = before


@contextmanager
def bars_on_terminals(wanted: bool) -> Iterator[None]:
    """Show bars if `wanted`, and only on a terminal: in a file each step would be a line."""
    with showing(wanted and sys.stdout.isatty() and sys.stderr.isatty()):
        yield


@contextmanager
def sync_progress_bars(library: Any) -> Iterator[None]:
    """Disable the bars of a Hugging Face library inside the context unless ours are shown.

    Args:
        library: module with `are_progress_bars_disabled`, `disable_progress_bars` and `enable_progress_bars`.
    """
    if shows() or library.are_progress_bars_disabled():
        yield
        return
    library.disable_progress_bars()
    try:
        yield
    finally:
        library.enable_progress_bars()
