"""What a Python file computes with and what it imports, read from its syntax tree; nothing is executed."""

import ast
import gc
import hashlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sparsefront.artifacts.digest_memo import remembered

Import = tuple[str, str | None]
"""(module, name): `from module import name`, a relative module with its leading dots; name None = the whole module."""


@dataclass(frozen=True)
class PythonSource:
    """One file.

    Args:
        digest: of the code; comments, docstrings, blank lines and layout are not in it.
        imports: all of them, also inside functions, but for those under `if TYPE_CHECKING`.
        exports: name -> where it comes from, if the file does nothing but import names and give them others, as the
            `__init__` of a package may; None where it does more.
    """

    digest: str
    imports: tuple[Import, ...]
    exports: dict[str, Import] | None


# What is remembered was read by this very file, in this version of Python.
_READER = f"python {sys.version_info[:2]} {hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:16]}"


def read_python(code: bytes) -> PythonSource:
    """The content of a file; of one that this Python cannot parse (a compiled extension), the digest of its bytes."""

    def read() -> list:
        found = _parsed(code)
        return [found.digest, found.imports, found.exports]

    digest, imports, exports = remembered(f"{_READER} {hashlib.sha256(code).hexdigest()}", read)
    origins = None if exports is None else {name: tuple(origin) for name, origin in exports.items()}
    return PythonSource(digest, tuple(map(tuple, imports)), origins)


@contextmanager
def _collecting_nothing() -> Iterator[None]:
    """A tree has no cycles, and its many nodes would set off a search of all that torch has loaded: half of the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@_collecting_nothing()
def _parsed(code: bytes) -> PythonSource:
    reader = _Reader()
    try:
        tree = ast.parse(code)
        reader.read(tree)
    except (SyntaxError, ValueError, RecursionError):
        return PythonSource(hashlib.sha256(code).hexdigest(), (), None)
    digest = hashlib.sha256("".join(reader.pieces).encode()).hexdigest()
    return PythonSource(digest, tuple(dict.fromkeys(reader.imports)), _exports(tree.body))


class _Reader:
    """Writes a tree as text, without positions and what only some versions of Python put into it, and notes imports."""

    def __init__(self) -> None:
        self.pieces: list[str] = []
        self.imports: list[Import] = []

    def read(self, node: ast.AST) -> None:
        pieces = self.pieces
        pieces.append(type(node).__name__)
        if isinstance(node, ast.Constant):
            pieces.append(repr(node.value))
            return
        pieces.append("(")
        self._note(node)
        before = len(self.imports)
        for field in node._fields:
            value = getattr(node, field, None)
            if value is None or value == [] or field == "ctx":  # which the place of a node in the tree tells
                continue
            pieces.append(field)
            for item in value if isinstance(value, list) else (value,):
                if not isinstance(item, ast.AST):
                    pieces.append(f" {item!r}")
                elif not _is_text(item):
                    self.read(item)
            if field == "body" and isinstance(node, ast.If) and _only_for_types(node):
                del self.imports[before:]
        pieces.append(")")

    def _note(self, node: ast.AST) -> None:
        if isinstance(node, ast.Import):
            self.imports += ((alias.name, None) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            self.imports += ((_module(node), None if alias.name == "*" else alias.name) for alias in node.names)
        elif isinstance(node, ast.Call) and (named := _import_by_name(node)) is not None:
            self.imports.append((named, None))


def _is_text(statement: ast.AST) -> bool:
    """A string that stands alone: a docstring, or the description of an attribute."""
    if not (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)):
        return False
    return isinstance(statement.value.value, str)


def _module(statement: ast.ImportFrom) -> str:
    return "." * statement.level + (statement.module or "")


def _only_for_types(statement: ast.If) -> bool:
    name = statement.test.attr if isinstance(statement.test, ast.Attribute) else getattr(statement.test, "id", None)
    return name == "TYPE_CHECKING"


def _import_by_name(call: ast.Call) -> str | None:
    """The module of `importlib.import_module("module")`; None for any other call, or where the name is computed."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", None)
    first = call.args[0] if name == "import_module" and call.args else None
    return first.value if isinstance(first, ast.Constant) and isinstance(first.value, str) else None


def _exports(body: list[ast.stmt]) -> dict[str, Import] | None:
    exports: dict[str, Import] = {}
    for statement in body:
        if isinstance(statement, ast.ImportFrom) and all(alias.name != "*" for alias in statement.names):
            exports |= {alias.asname or alias.name: (_module(statement), alias.name) for alias in statement.names}
        elif isinstance(statement, ast.Assign) and all(isinstance(target, ast.Name) for target in statement.targets):
            names, value = [target.id for target in statement.targets], statement.value
            if isinstance(value, ast.Name) and value.id in exports:
                exports |= dict.fromkeys(names, exports[value.id])
            elif not all(name.startswith("__") and name.endswith("__") for name in names):  # as __all__, __version__
                return None
        elif not _is_text(statement) and not (isinstance(statement, ast.If) and _only_for_types(statement)):
            return None  # a plain `import patches` too: what else is it there for?
    return exports
