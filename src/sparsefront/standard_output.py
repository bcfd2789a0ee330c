"""A program whose output is read no further, as in `python compare.py | head`, ends quietly."""

import os
import select
import sys
from collections.abc import Iterator
from contextlib import contextmanager

READER_GONE = 1  # exit status; rich, which prints the tables, ends a program with the same


@contextmanager
def ending_with_its_reader() -> Iterator[None]:
    """Around a program, or as the decorator of its `main`: nothing is said where standard output is a pipe that nobody reads.

    Raises:
        SystemExit: with READER_GONE.
    """
    try:
        try:
            yield
        finally:
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
