"""How long a search may take: nothing begins in it that cannot end in time, and what was left out is kept, to be said."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

from sparsefront_kernels import cuda_library

from sparsefront.errors import InvalidSetting
from sparsefront.progress import counted, working_time

COMPILE, BLOCK, VARIANT, LAYER, LIBRARY = "compile", "block", "variant", "layer", "library"
"""Kinds of work, of which each is taken to need as long as the last one of its kind, without what was of another kind in it."""
MOST_SHOWN = 3
NOT_TRIED = "not tried"
MOST_SECONDS = 86_400.0  # of what has to be a finite number

Tell = Callable[[str], None]


class SearchTime:
    """The budget of one call.

    Args:
        seconds: of `working_time`, from now on; infinity: no limit.
        tell: gets a line where something takes long that happens once on a machine.
    Attributes:
        left_out: what was not begun -> why.
    Raises:
        InvalidSetting: no number, or a negative one.
    """

    def __init__(self, seconds: float, tell: Tell = lambda line: None) -> None:
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds >= 0:
            raise InvalidSetting("seconds", seconds, "is how long a search may take: a number, 0 or more")
        self.seconds, self.tell = seconds, tell
        self.left_out: dict[str, str] = {}
        self._started = working_time()
        self._ends = self._started + seconds
        self._last: dict[str, float] = {}
        self._inside = 0.0
        self._of = ""

    @property
    def left(self) -> float:
        """Seconds, of the part that runs now."""
        return max(0.0, self._ends - working_time())

    @property
    def good_for(self) -> float:
        """Seconds of the longest search that would find nothing else."""
        return self.seconds if self.left_out else math.inf

    def limit(self) -> str:
        return "without a limit" if math.isinf(self.seconds) else f"for at most {self.seconds:g} s"

    def summary(self) -> str:
        """`12.3 s`, and what was left out."""
        taken = f"{working_time() - self._started:.1f} s"
        if not self.left_out:
            return taken
        shown = [f"{what} ({why})" for what, why in list(self.left_out.items())[:MOST_SHOWN]]
        if (more := len(self.left_out) - MOST_SHOWN) > 0:
            shown.append(f"{more} more")
        left_out = counted(len(self.left_out), "thing")
        return f"{taken}; {left_out} left out, seconds={self.seconds:g}: {'; '.join(shown)}"

    @contextmanager
    def part(self, share: float, of: str) -> Iterator[None]:
        """Around work that may take this share of what is left; names of what it leaves out begin with `of`."""
        before = self._ends, self._of
        if not math.isinf(self._ends):
            self._ends = working_time() + share * self.left
        self._of = f"{of}/"
        try:
            yield
        finally:
            self._ends, self._of = before

    def too_late(self, what: str, kind: str, before: str | None = None) -> str | None:
        needed, left = self._last.get(kind, 0.0), self.left
        if before is not None:
            left = max(0.0, left - self._last.get(before, 0.0))
        if left > needed:
            return None
        reason = f"{NOT_TRIED}: about {needed:.0f} s are needed, {left:.0f} s of the search are left"
        self.left_out[self._of + what] = reason
        return reason

    @contextmanager
    def begun(self, kind: str) -> Iterator[None]:
        start, before, self._inside = working_time(), self._inside, 0.0
        try:
            yield
        finally:
            taken = working_time() - start
            self._last[kind], self._inside = taken - self._inside, before + taken


_current: SearchTime | None = None


@contextmanager
def searching(search: SearchTime) -> Iterator[SearchTime]:
    """Around a search: what is in it asks this budget. For one thread."""
    global _current
    before, _current = _current, search
    try:
        with cuda_library.gated(_in_time):
            yield search
    finally:
        _current = before


@contextmanager
def _in_time(library: str) -> Iterator[str | None]:
    """Why a CUDA library is not compiled now; None where it is."""
    if (late := too_late(f"the library of {library}", LIBRARY)) is not None or _current is None:
        yield late
        return
    _current.tell(f"compiling the CUDA library of {library}, once on this machine")
    with begun(LIBRARY):
        yield None


def current() -> SearchTime | None:
    """The budget of the search around this call; None where nothing limits it, as in a run of the program."""
    return _current


@contextmanager
def part(share: float, of: str) -> Iterator[None]:
    """`SearchTime.part` of the search around it, if there is one."""
    if _current is None:
        yield
        return
    with _current.part(share, of):
        yield


def too_late(what: str, kind: str, before: str | None = None) -> str | None:
    """Why this cannot be begun, which is noted; None where it may be.

    Args:
        before: a kind of work that is to follow it, for which time has to be left.
    """
    return None if _current is None else _current.too_late(what, kind, before)


@contextmanager
def begun(kind: str) -> Iterator[None]:
    """Around one piece of work, whose duration the next of its kind is expected to take."""
    with nullcontext() if _current is None else _current.begun(kind):
        yield
