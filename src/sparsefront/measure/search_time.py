"""Time budget of a search: work that cannot finish in time is skipped, and skipped work is recorded for the report."""

import functools
import hashlib
import json
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from sparsefront_kernels import cuda_library
from sparsefront_kernels.tuning.store import driver_cuda, user_file

from sparsefront.artifacts.bounded_files import Unreadable, read_json_bounded
from sparsefront.artifacts.code_digest import code_digest
from sparsefront.artifacts.content_digest import remembering, versions
from sparsefront.artifacts.durable import whole_file
from sparsefront.errors import InvalidSetting
from sparsefront.progress import counted, working_time

COMPILE, AUTOTUNE, BLOCK, VARIANT, LAYER = "compile", "max_autotune", "block", "variant", "layer"
"""Kinds of work. Each is expected to take as long as the shortest of its kind so far, without nested work of other kinds: the
first of a process also loads libraries and fills caches, and would leave out all others."""
BUILDS, CHECKS, PRODUCTS, NETWORKS = "builds", "correctness checks", "product and block times", "whole networks"
"""What a search spends its time on; the rest goes to packing weights and rewriting blocks."""
MOST_SHOWN = 3
NOT_TRIED = "not tried"
# Seconds that the first of a kind is expected to take; of max_autotune, on top of a plain compilation.
FIRST = {BLOCK: 10.0, AUTOTUNE: 30.0}

Tell = Callable[[str], None]


class SearchTime:
    """The time budget of one search, whose clock stops while CUDA libraries are built.

    Args:
        seconds: of `working_time`, from now on; infinity: no limit.
        tell: called with a line of text before slow work that happens once per machine.
    Attributes:
        left_out: skipped work -> why.
        spent: BUILDS, CHECKS, PRODUCTS or NETWORKS -> seconds, without nested work of another kind.
    Raises:
        InvalidSetting: `seconds` is no number, or negative.
    """

    def __init__(self, seconds: float, tell: Tell = lambda line: None) -> None:
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds >= 0:
            raise InvalidSetting("seconds", seconds, "is how long a search may take: a number, 0 or more")
        self.seconds, self.tell = seconds, tell
        self.left_out: dict[str, str] = {}
        self.spent: dict[str, float] = {}
        self._started = working_time()
        self._ends = self._started + seconds
        self._shortest: dict[str, float] = dict(FIRST)
        self._inside = self._inner = 0.0
        self._of = ""

    def _now(self) -> float:
        return working_time() - self.spent.get(BUILDS, 0.0)

    @property
    def taken(self) -> dict[str, float]:
        """Seconds so far: "search", without builds, then `spent`."""
        return {"search": self._now() - self._started, **self.spent}

    @property
    def left(self) -> float:
        """Seconds left of the current part."""
        return max(0.0, self._ends - self._now())

    def limit(self) -> str:
        return "without a limit" if math.isinf(self.seconds) else f"for at most {self.seconds:g} s"

    def summary(self) -> str:
        """The time taken, such as `12.3 s`, and what was skipped."""
        taken = describe_taken(self.taken)
        if not self.left_out:
            return taken
        shown = [f"{what} ({why})" for what, why in list(self.left_out.items())[:MOST_SHOWN]]
        more = len(self.left_out) - MOST_SHOWN
        if more > 0:
            shown.append(f"{more} more")
        left_out = counted(len(self.left_out), "thing")
        return f"{taken}; {left_out} left out, seconds={self.seconds:g}: {'; '.join(shown)}"

    @contextmanager
    def part(self, share: float, of: str) -> Iterator[None]:
        """Give the work inside this share of the time left; names of what it skips begin with `of`."""
        before = self._ends, self._of
        if not math.isinf(self._ends):
            self._ends = self._now() + share * self.left
        self._of = f"{of}/"
        try:
            yield
        finally:
            self._ends, self._of = before

    def too_late(self, what: str, kind: str, before: str | None = None) -> str | None:
        needed, left = self._shortest.get(kind, 0.0), self.left
        if before is not None:
            needed += self._shortest.get(before, 0.0)
        if left > needed:
            return None
        return self.skip(what, f"{NOT_TRIED}: about {needed:.0f} s are needed, {left:.0f} s of the search are left")

    def skip(self, what: str, reason: str) -> str:
        """Record why work was skipped; returns the reason."""
        self.left_out[self._of + what] = reason
        return reason

    @contextmanager
    def time_work(self, kind: str) -> Iterator[None]:
        start, before, self._inside = self._now(), self._inside, 0.0
        try:
            yield
        finally:
            taken = self._now() - start
            self._shortest[kind] = min(self._shortest.get(kind, math.inf), taken - self._inside)
            self._inside = before + taken

    @contextmanager
    def spending(self, what: str) -> Iterator[None]:
        start, before, self._inner = self._now(), self._inner, 0.0
        try:
            yield
        finally:
            taken = self._now() - start
            self.spent[what] = self.spent.get(what, 0.0) + taken - self._inner
            self._inner = before + taken

    @contextmanager
    def builds(self) -> Iterator[None]:
        """Stop the clock."""
        start = working_time()
        try:
            yield
        finally:
            self.spent[BUILDS] = self.spent.get(BUILDS, 0.0) + working_time() - start


def describe_taken(taken: Mapping[str, float]) -> str:
    """`SearchTime.taken` as text, such as `41.2 s (12.0 s correctness checks); before it 15.0 s builds`."""
    parts = ", ".join(f"{seconds:.1f} s {what}" for what, seconds in taken.items() if what not in ("search", BUILDS))
    shares = f" ({parts})" if parts else ""
    return f"{taken['search']:.1f} s{shares}" + (
        f"; before it {taken[BUILDS]:.1f} s {BUILDS}" if BUILDS in taken else ""
    )


_current: SearchTime | None = None


@contextmanager
def searching(search: SearchTime) -> Iterator[SearchTime]:
    """Make `search` the budget of all work inside; not thread-safe."""
    global _current
    before, _current = _current, search
    try:
        with cuda_library.during_builds(search.tell, search.builds):
            yield search
    finally:
        _current = before


def current() -> SearchTime | None:
    """The budget of the enclosing search, or None."""
    return _current


def _budget() -> SearchTime:
    return SearchTime(math.inf) if _current is None else _current


def part(share: float, of: str) -> AbstractContextManager[None]:
    """`SearchTime.part` of the enclosing search, if there is one."""
    return _budget().part(share, of)


def too_late(what: str, kind: str, before: str | None = None) -> str | None:
    """Why there is no time for this work, which is then recorded as skipped; None where there is.

    Args:
        before: a kind of work that follows it and needs time, too.
    """
    return _budget().too_late(what, kind, before)


def time_work(kind: str) -> AbstractContextManager[None]:
    """Measure one piece of work; the next of its kind is expected to take as long, or shorter."""
    return _budget().time_work(kind)


@contextmanager
def spending(what: str) -> Iterator[None]:
    """Account time to CHECKS, PRODUCTS or NETWORKS: see `SearchTime.spent`."""
    with _budget().spending(what):
        yield


FOLDER = "searches"  # next to the measured launch parameters
SOURCES_READ = "sources.json"  # digests of sources, which later processes need not parse
DRIVER = Path("/sys/module/nvidia/version")


class SearchCache:
    """Results of one kind of search, a file each, in the cache of the kernels' own measurements.

    A file is valid for the same GPU model, driver, code, kernels and libraries. CPU results stay in this process.

    Args:
        kind: name of the search.
        code: modules whose code determines the result.
    """

    def __init__(self, kind: str, code: tuple[str, ...]) -> None:
        self.kind, self.code = kind, code
        self._here: dict[str, dict[str, Any]] = {}

    def get(self, key: str, device: torch.device) -> dict[str, Any] | None:
        """The stored result; None where there is none, or its file cannot be read."""
        if key not in self._here and device.type == "cuda":
            with suppress(OSError, Unreadable):
                record = read_json_bounded(self._file(key, device))
                if isinstance(record, dict):
                    self._here[key] = record
        return self._here.get(key)

    def keep(self, key: str, found: dict[str, Any], device: torch.device) -> None:
        """Store a result for this process and, if its file can be written and all libraries could be built, for later ones."""
        self._here[key] = found
        if device.type != "cuda" or cuda_library.any_failed():
            return
        try:
            file = self._file(key, device)
            file.parent.mkdir(parents=True, exist_ok=True)
            with whole_file(file) as partial:
                partial.write_text(json.dumps(found), encoding="utf-8")
        except OSError as error:  # later processes search again
            cuda_library.report_unwritable_cache(error)

    def _file(self, key: str, device: torch.device) -> Path:
        gpu = torch.cuda.get_device_name(device)
        folder = user_file(gpu, FOLDER).parent
        with remembering(folder / SOURCES_READ):
            parts = self.kind, key, gpu, _environment_digest(self.code)
        return folder / f"{self.kind}-{hashlib.sha256(chr(0).join(parts).encode()).hexdigest()[:32]}.json"


@functools.cache
def _environment_digest(code: tuple[str, ...]) -> str:
    """Digest of the code, the kernels' sources and compiler, and the versions of libraries and driver."""
    libraries = versions("torch", "triton", "transformers", "quack-kernels", "nvidia-cutlass-dsl", "torchao")
    built = cuda_library.availability()
    driver = DRIVER.read_text(encoding="ascii") if DRIVER.is_file() else driver_cuda()
    return repr((code_digest(*code, without=(), kernels=True), libraries, torch.version.cuda, driver, built))
