"""What a program says while it runs: progress bars, numbers with their nouns, and a clock that leaves waits out."""

import os
import select
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from typing import Any, TextIO

from omegaconf import DictConfig, OmegaConf
from tqdm import tqdm

# A number with its noun: `1 layer`, `2 layers`.


def counted(number: int | str, noun: str) -> str:
    """`1 run`, `2 runs`, `0.5 epochs`.

    Args:
        number: as it is to be read.
        noun: of one thing; of several it ends in s.
    """
    return f"{number} {noun}" + ("" if str(number) == "1" else "s")


# Output that cannot be shown: a run goes on without it, since what it stores is its result.


class _Shown:
    """A text stream that raises nothing: what its encoding lacks becomes `?`, and what cannot be written at all is dropped."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with suppress(OSError, ValueError):  # a pipe without its reader, a full disk, a closed stream
            try:
                self._stream.write(text)
            except UnicodeEncodeError:
                self._stream.write(_encodable(text, self._stream))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        with suppress(OSError, ValueError):
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _encodable(text: str, stream: TextIO) -> str:
    encoding = getattr(stream, "encoding", None) or "ascii"
    return text.encode(encoding, errors="replace").decode(encoding)


@contextmanager
def unaffected_by_output() -> Iterator[None]:
    """Around work whose result does not depend on what it says: output that cannot be shown fails nothing inside.

    What the encoding of a terminal lacks becomes `?`; after a reader has gone, or with a full disk, nothing is shown.
    """
    with ExitStack() as streams:
        for stream, redirect in ((sys.stdout, redirect_stdout), (sys.stderr, redirect_stderr)):
            if stream is None:  # closed before the program began
                stream = streams.enter_context(open(os.devnull, "w", encoding="utf-8"))
            streams.enter_context(redirect(stream if isinstance(stream, _Shown) else _Shown(stream)))
        yield


# A program whose output is read no further, as in `python compare.py | head`, ends quietly.

READER_GONE = 1  # exit status; rich, which prints the tables, ends a program with the same


@contextmanager
def ending_with_its_reader() -> Iterator[None]:
    """Around a program, or as the decorator of its `main`: nothing is said where standard output is a pipe that nobody reads,
    and what a terminal's encoding lacks becomes `?`.

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
                sys.stdout.flush()  # here, since Python would complain of it at its end
    except BrokenPipeError:
        if not _reader_is_gone():  # another pipe than standard output
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what is still buffered
        raise SystemExit(READER_GONE) from None


def _reader_is_gone() -> bool:
    poll = select.poll()
    try:
        poll.register(sys.stdout.fileno(), 0)
    except OSError:  # what stands in for standard output may be no file
        return False
    return any(events & select.POLLERR for _, events in poll.poll(0))


# What a process spends its time on, and a clock that stands still while it waits for others.

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


_shown: bool | None = None  # nobody said


def bar(
    iterable: Iterable | None = None,
    *,
    description: str,
    total: int | None = None,
    unit: str = "it",
    leave: bool = False,
) -> tqdm:
    """A bar on stderr; where bars are not shown it only counts.

    Args:
        total: steps until the end; None = the length of the iterable.
        leave: it stays at its end, instead of vanishing.
    """
    return tqdm(
        iterable, desc=description, total=total, unit=unit, leave=leave, disable=not shown(), dynamic_ncols=True
    )


def shown() -> bool:
    """Whether this process shows bars: the first rank does, on a terminal or in a notebook unless `showing` says it."""
    from sparsefront import distributed  # here: it imports torch, and settings import this module

    wanted = (sys.stderr.isatty() or "ipykernel" in sys.modules) if _shown is None else _shown
    return wanted and distributed.rank() == 0


@contextmanager
def showing(wanted: bool | None) -> Iterator[None]:
    """Bars inside, or none; None: where they can be watched."""
    global _shown
    before, _shown = _shown, wanted
    try:
        yield
    finally:
        _shown = before


@contextmanager
def bars_as_configured(config: DictConfig) -> Iterator[None]:
    """A run whose bars obey `trainer.progress_bar`; without a terminal none: each of their steps would be a line of a file."""
    wanted = OmegaConf.select(config, "trainer.progress_bar") is True
    with showing(wanted and sys.stdout.isatty() and sys.stderr.isatty()):
        yield


@contextmanager
def like_ours(library: Any) -> Iterator[None]:
    """The bars of one of Hugging Face's libraries inside: shown only where ours are.

    Args:
        library: its module with `are_progress_bars_disabled`, `disable_progress_bars` and `enable_progress_bars`.
    """
    if shown() or library.are_progress_bars_disabled():
        yield
        return
    library.disable_progress_bars()
    try:
        yield
    finally:
        library.enable_progress_bars()
