"""The programs of a study lie beside one another and import one another by name."""

import importlib
import sys
from collections.abc import Iterator
from types import ModuleType

import pytest


@pytest.fixture(scope="module")
def modules(request: pytest.FixtureRequest) -> Iterator[dict[str, ModuleType]]:
    """Name -> module, of the test file's NAMES in its FOLDER; forgotten afterwards, since other studies use the same names."""
    folder, names = str(request.module.FOLDER), request.module.NAMES
    sys.path.insert(0, folder)
    try:
        yield {name: importlib.import_module(name) for name in names}
    finally:
        sys.path.remove(folder)
        for name in names:
            sys.modules.pop(name, None)
