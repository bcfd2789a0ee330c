"""The programs of a study lie beside one another and import one another by name."""

import importlib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="module")
def study_files(request: pytest.FixtureRequest) -> tuple[Path, Sequence[str]]:
    """The folder of the programs, and their names: FOLDER and NAMES of the test file."""
    return request.module.FOLDER, request.module.NAMES


@pytest.fixture(scope="module")
def modules(study_files: tuple[Path, Sequence[str]]) -> Iterator[dict[str, ModuleType]]:
    """Name -> module; forgotten afterwards, since other studies use the same names."""
    folder, names = study_files
    sys.path.insert(0, str(folder))
    try:
        yield {name: importlib.import_module(name) for name in names}
    finally:
        sys.path.remove(str(folder))
        for name in names:
            sys.modules.pop(name, None)
