"""The programs of an experiment, by name."""

import importlib
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="module")
def folder(request: pytest.FixtureRequest) -> Path:
    """Of the experiment: FOLDER of the test file."""
    return request.module.FOLDER


@pytest.fixture(scope="module")
def modules(folder: Path) -> dict[str, ModuleType]:
    """Name -> module, of every program in the folder."""
    return {
        file.stem: importlib.import_module(f"experiments.{folder.name}.{file.stem}") for file in folder.glob("*.py")
    }
