"""One finished run on the digits, of which tests take copies."""

import shutil
from pathlib import Path

import pytest

import sparsefront as sf

TINY = ("debug=tiny", "logger=none", "trainer=cpu", "measure.device=cpu", "model.dim=64", "model.depth=1")


@pytest.fixture(scope="session")
def tiny() -> tuple[str, ...]:
    """Overrides of a run that takes a second."""
    return TINY


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the run, which no test changes; its cache lies two folders above."""
    folder = tmp_path_factory.mktemp("verify")
    places = (f"cache_dir={folder / 'cache'}", f"results_dir={folder / 'results'}")
    return sf.run(*TINY, *places, "pattern=n_m", "sparsity=0.5", "recipe.epochs=4").folder


@pytest.fixture
def copied(finished: Path, tmp_path: Path) -> Path:
    """A copy of the run, its checkpoint copied as well: what a stranger sends."""
    return Path(shutil.copytree(finished, tmp_path / "run", symlinks=False))
