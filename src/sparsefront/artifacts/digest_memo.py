"""What reading a source or a large file once told, kept on disk, so that the next process need not read it again."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from typing import Any

from sparsefront.artifacts.bounded_files import read_json_bounded
from sparsefront.artifacts.durable import whole_file

MOST = 20_000  # entries; with more it starts over, since most are of files that were edited


class DigestMemo:
    """JSON-able values by a text that names content and what was asked of it. Losing it costs time and nothing else."""

    def __init__(self, file: Path) -> None:
        self.file, self._known, self._new = file, _read(file), {}

    def get(self, key: str, make: Callable[[], Any]) -> Any:
        if key not in self._known:
            self._known[key] = self._new[key] = make()
        return self._known[key]

    def save(self) -> None:
        """Add what is new to the file; what other processes wrote meanwhile stays."""
        if not self._new:
            return
        entries = _read(self.file) | self._new
        entries, self._new = self._new if len(entries) > MOST else entries, {}
        with suppress(OSError):  # a disk that is full, or a cache that is read only
            self.file.parent.mkdir(parents=True, exist_ok=True)
            with whole_file(self.file) as new:
                new.write_text(json.dumps(entries))


_active: ContextVar[DigestMemo | None] = ContextVar("_active", default=None)


@contextmanager
def remembering(file: Path) -> Iterator[None]:
    """Inside, `remembered` finds what earlier processes left in this file, and leaves what is new."""
    memo = _memo(file)
    token = _active.set(memo)
    try:
        yield
    finally:
        _active.reset(token)
        memo.save()


def remembered(key: str, make: Callable[[], Any]) -> Any:
    """The JSON-able value of a key; made where no process did before, or nothing is kept."""
    memo = _active.get()
    return make() if memo is None else memo.get(key, make)


_memo = cache(DigestMemo)


def _read(file: Path) -> dict[str, Any]:
    try:
        found = read_json_bounded(file)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
