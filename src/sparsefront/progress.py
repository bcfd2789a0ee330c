"""Progress bars: one switch for ours, Lightning's and those of the libraries that fetch data and weights."""

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

from omegaconf import DictConfig, OmegaConf
from tqdm import tqdm

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


def bars_as_configured(run: Callable[[DictConfig], Any]) -> Callable[[DictConfig], Any]:
    """A run whose bars obey `trainer.progress_bar`; without a terminal none: each of their steps would be a line of a file."""

    @wraps(run)
    def with_bars(config: DictConfig) -> Any:
        wanted = OmegaConf.select(config, "trainer.progress_bar") is True
        with showing(wanted and sys.stdout.isatty() and sys.stderr.isatty()):
            return run(config)

    return with_bars


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
