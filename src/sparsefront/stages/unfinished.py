"""Where a training keeps what a later one goes on from, apart for all that it may have begun with."""

from pathlib import Path
from typing import Any

from sparsefront.artifacts.content_digest import file_digest
from sparsefront.artifacts.digest import digest
from sparsefront.artifacts.store import ArtifactStore


def unfinished_from(store: ArtifactStore, kind: str, cache_key: dict[str, Any], *files: Path) -> Path:
    """A folder of the stage's own, by the bytes of the files that its training begins with.

    Stages that were removed or damaged are made again under the same key, and may hold other bits: on a GPU, on another
    processor. What was trained from those before is then left alone.
    """
    return store.unfinished(kind, cache_key) / digest([file_digest(file) for file in files])
