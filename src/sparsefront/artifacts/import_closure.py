"""The modules that a piece of code is made of: what it imports, what that imports, and so on; nothing is executed."""

import functools
import importlib.util
from collections.abc import Iterable
from pathlib import Path

from sparsefront.artifacts.python_modules import Module, counts_by_version, find_module
from sparsefront.artifacts.python_source import Import, PythonSource, read_python


@functools.cache
def import_closure(roots: tuple[Import, ...], *, without: tuple[str, ...] = ()) -> tuple[Module, ...]:
    """All modules with source that the roots reach, in the order of their names.

    Followed are imports anywhere in a file, so also those inside functions, into every module that does not count by its
    version. The package of a root is followed wherever it lies. A package whose `__init__` only re-exports names is no
    dependency of what imports one of them: the module that the name comes from is.

    Args:
        roots: what runs: (module, name), or (module, None) for all of it. A module that does not exist is left out.
        without: modules and packages, dotted, that are not followed.
    """
    closure = _Closure(frozenset(module.partition(".")[0] for module, _ in roots), without)
    for root in roots:
        closure.add(root)
    while closure.waiting:
        closure.follow(closure.waiting.pop())
    return tuple(closure.found[name] for name in sorted(closure.found))


@functools.cache
def source_of(file: Path) -> PythonSource:
    """The content of a file when this process first asked: what runs is what was imported then."""
    return read_python(file.read_bytes())


class _Closure:
    """The search of `import_closure`.

    Args:
        tops: top-level modules that are followed wherever they lie.
        without: as in `import_closure`.
    """

    def __init__(self, tops: Iterable[str], without: tuple[str, ...]) -> None:
        self.tops, self.without = tops, without
        self.found: dict[str, Module] = {}
        self.waiting: list[Import] = []
        self._seen: set[Import] = set()

    def add(self, wanted: Import | None) -> None:
        if wanted is not None and wanted not in self._seen:
            self._seen.add(wanted)
            self.waiting.append(wanted)

    def follow(self, wanted: Import) -> None:
        name, attribute = wanted
        module = find_module(name) if self._is_followed(name) else None
        if module is None:
            return
        self._add_parents(name)
        exports = _exports(module)
        if attribute is not None and module.folders:
            origin = None if exports is None else exports.get(attribute)
            if origin is not None and (origin := _absolute(origin, module)) != wanted:
                return self.add(origin)
            self.add((f"{name}.{attribute}", None))  # where it is a submodule
            if exports is not None:
                return None
        if module.file is None:
            return None
        if exports is None:
            self.found[name] = module
        for imported in source_of(module.file).imports:
            self.add(_absolute(imported, module))
        return None

    def _is_followed(self, name: str) -> bool:
        top = name.partition(".")[0]
        if top not in self.tops and counts_by_version(top):
            return False
        return not any(name == left_out or name.startswith(f"{left_out}.") for left_out in self.without)

    def _add_parents(self, name: str) -> None:
        """Packages above run first; those that only re-export change nothing."""
        while name := name.rpartition(".")[0]:
            parent = find_module(name)
            if parent is not None and _exports(parent) is None:
                self.add((name, None))


def _exports(module: Module) -> dict[str, Import] | None:
    """Of a package that only re-exports names, where they come from; None for any other module."""
    if not module.folders:
        return None
    return {} if module.file is None else source_of(module.file).exports


def _absolute(wanted: Import, module: Module) -> Import | None:
    """What a file imports, by its full name; None for a relative import that leads out of every package and fails."""
    name, attribute = wanted
    try:
        return (importlib.util.resolve_name(name, module.package) if name.startswith(".") else name), attribute
    except ImportError:  # as `try: from . import helper`, in a module that serves alone too
        return None
