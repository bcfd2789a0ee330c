"""Ctrl-C ends a program with one line and status 130, as in shells: in its first second, and where it is pressed twice, too.

Imports little, because it works from the first import of a program on.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

STATUS = 128 + signal.SIGINT
BOUNCE_S = 0.5  # a terminal and `timeout` may send it twice at once
_pressed_at: float | None = None
_line = "interrupted"


def end_at_once() -> None:
    """From now on Ctrl-C ends the program, which has done nothing yet, without waiting for its imports."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not where a shell ignores it
        signal.signal(signal.SIGINT, _end)


@contextmanager
def interruptible(line: str = "interrupted") -> Iterator[None]:
    """Context in which Ctrl-C raises KeyboardInterrupt, once, and a second one ends the program without waiting for the first.

    Args:
        line: printed to stderr at the end.
    Raises:
        SystemExit: with status 130.
    """
    global _pressed_at, _line
    before, _pressed_at, _line = signal.getsignal(signal.SIGINT), None, line
    ours = threading.current_thread() is threading.main_thread() and before in (signal.default_int_handler, _end)
    if ours:
        signal.signal(signal.SIGINT, _raise_once)
    try:
        yield
    except KeyboardInterrupt:
        print(line, file=sys.stderr)
        raise SystemExit(STATUS) from None
    finally:
        if ours:
            signal.signal(signal.SIGINT, before)


def _raise_once(number: int, frame: FrameType | None) -> None:
    global _pressed_at
    if _pressed_at is None:
        _pressed_at = time.monotonic()
        raise KeyboardInterrupt
    if time.monotonic() - _pressed_at > BOUNCE_S:
        _end(number, frame)


def _end(number: int, frame: FrameType | None) -> None:
    os.write(2, f"{_line}\n".encode())
    os._exit(STATUS)
