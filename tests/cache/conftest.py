"""A cache with two results that share dense weights, one stage that no result uses, and their folder of results."""

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from whole_calls import get_or_make

from sparsefront.artifacts.content_digest import digest
from sparsefront.artifacts.durable import link_or_copy
from sparsefront.artifacts.store import ArtifactStore
from sparsefront.cache.__main__ import main
from sparsefront.config.schema import STAGES

SIZE = 100_000


@dataclass
class Cache:
    root: Path
    results: Path
    store: ArtifactStore | None = None

    def open(self) -> None:
        """What a run does at its beginning."""
        self.store = ArtifactStore(self.root, reuse=True, runnable=STAGES)

    def make(self, stage: str, cache_key: dict, *, share: Path | None = None) -> Path:
        """A stage of SIZE bytes, or with a file that it shares."""

        def write(folder: Path) -> None:
            if share is None:
                (folder / "weights").write_bytes(os.urandom(SIZE))
            else:
                link_or_copy(share, folder / "weights")

        return get_or_make(self.store, stage, cache_key, write, stage="dense").path

    def point(self, sparsity: float, *, name: str | None) -> dict[str, Path]:
        """A run of one sparsity, all of its stages; with a result where it has a name."""
        self.open()
        dense = self.make("dense", {"seed": 0})
        recover = {"prune": dense.name, "sparsity": sparsity}
        export = {"recover": digest(recover), "code": "f" * 16}
        measure = {"export": digest(export), "measure": {"nested": [1, digest({"quality": dense.name})]}}
        paths = {"dense": dense, "recover": self.make("recover", recover)}
        paths["export"] = self.make("export", export, share=paths["recover"] / "weights")
        self.make("dense_quality", {"quality": dense.name})
        paths["measure"] = self.make("measure", measure)
        paths["result"] = self.make("result", {"measure": digest(measure)})
        if name is not None:
            self.result(name, sparsity, run_id=paths["measure"].name, checkpoint=f"export/{paths['export'].name}")
        self.close()
        return paths

    def result(self, name: str, sparsity: float, **identity: str) -> None:
        folder = self.results / name
        folder.mkdir(parents=True)
        choice = {"pattern": "n_m"}
        row = {"identity": identity, "choice": choice, "sparsity": {"sparsity_target": sparsity}}
        (folder / "row.json").write_text(json.dumps(row))

    def close(self) -> None:
        """What a run does at its end: it uses nothing any more."""
        self.store.__exit__()

    def command(self, *arguments: str) -> int:
        return main([*arguments, "--cache-dir", str(self.root), "--results-dir", str(self.results)])

    def age(self, path: Path, days: float) -> None:
        """As if it was last used days ago."""
        then = time.time() - 86400 * days
        for file in (path, path / "determined_by.json"):
            os.utime(file, (then, then))


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Cache:
    monkeypatch.chdir(tmp_path)
    made = Cache(tmp_path / "cache", tmp_path / "runs")
    made.results.mkdir()
    return made


@pytest.fixture
def filled(cache) -> tuple[Cache, dict[str, Path]]:
    """The cache, and its stages: dense; first_* and second_* of two results; alone_* of none."""
    paths = {}
    for name, sparsity, result in (("first", 0.5, "2026_a"), ("second", 0.75, "sweep/001_b"), ("alone", 0.9, None)):
        for stage, path in cache.point(sparsity, name=result).items():
            paths["dense" if stage == "dense" else f"{name}_{stage}"] = path
    return cache, paths
