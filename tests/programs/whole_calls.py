"""What programs write as a block, as one call for tests."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from sparsefront.artifacts.store import Artifact, ArtifactStore
from sparsefront.training.ranks import other_ranks_running
from sparsefront.training.trainer import TrainerSettings


def get_or_make(
    store: ArtifactStore,
    kind: str,
    cache_key: dict[str, Any],
    write: Callable[[Path], float | None] | None,
    *,
    stage: str | None = None,
) -> Artifact:
    """The finished stage, its files written now by `write(folder)` if it is missing, as stages do; `write` may return the
    seconds of killed makers.
    """
    while (found := store.get(kind, cache_key, stage=stage)) is None:
        with store.making(kind, cache_key) as new:
            seconds = write(new.folder)
            new.earlier_seconds = seconds if isinstance(seconds, float) else 0.0
    return found


def on_every_rank(
    body: Callable[..., Any],
    *arguments: Any,
    trainer: TrainerSettings,
    folder: Path,
    loggers: list,
    shared: Path | None = None,
) -> Any:
    """What `body(*arguments, folder, loggers)` returns on rank 0, where all ranks run it."""
    with other_ranks_running(body, *arguments, trainer=trainer, shared=shared):
        return body(*arguments, folder, loggers)
