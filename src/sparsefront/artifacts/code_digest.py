"""The digest of code: the modules that it reaches by imports, its native sources, and libraries by their versions."""

import ast
import functools
import gc
import hashlib
import importlib.util
import re
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

from sparsefront.artifacts.content_digest import DIGITS, remembered, versions

# What a Python file computes with and what it imports, read from its syntax tree; nothing is executed.

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
_PYTHON_READER = f"python {sys.version_info[:2]} {hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:16]}"


def read_python(code: bytes) -> PythonSource:
    """The content of a file; of one that this Python cannot parse (a compiled extension), the digest of its bytes."""

    def read() -> list:
        found = _parsed(code)
        return [found.digest, found.imports, found.exports]

    digest, imports, exports = remembered(f"{_PYTHON_READER} {hashlib.sha256(code).hexdigest()}", read)
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
    return PythonSource(digest, tuple(dict.fromkeys(reader.imports)), _exports_of_body(tree.body))


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


def _exports_of_body(body: list[ast.stmt]) -> dict[str, Import] | None:
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


# Where a module's source lies, found without importing it, and which modules count by version instead.

OWN = frozenset({"sparsefront", "sparsefront_kernels"})
# Covered by their versions (see `digest.versions`), also where they are imported from a checkout.
LIBRARIES = frozenset(
    "torch torchvision torchmetrics triton pytorch_lightning lightning lightning_fabric transformers tokenizers datasets "
    "huggingface_hub safetensors numpy pandas sklearn scipy PIL hydra omegaconf quack cutlass".split()
)


@dataclass(frozen=True)
class Module:
    """A module on disk.

    Args:
        name: dotted.
        file: its source, or its compiled extension; None for a package without `__init__`.
        folders: where the submodules of a package lie; empty for a plain module.
    """

    name: str
    file: Path | None
    folders: tuple[Path, ...] = ()

    @property
    def package(self) -> str:
        """The package that its relative imports start from; "" for a module in none."""
        return self.name if self.folders else self.name.rpartition(".")[0]


@functools.cache
def find_module(name: str) -> Module | None:
    """The module as it is loaded or would be; None where there is none of this name, or none with a file.

    It is looked up once per process: an edited file counts from the next one on, as the import of it does.
    """
    loaded = sys.modules.get(name)
    if loaded is not None and getattr(loaded, "__file__", None):
        return Module(name, Path(loaded.__file__), tuple(map(Path, getattr(loaded, "__path__", ()))))
    parent, _, last = name.rpartition(".")
    if not parent:
        return _find_top(name)
    above = find_module(parent)
    return None if above is None else _find_in(above.folders, name, last)


@functools.cache
def counts_by_version(top: str) -> bool:
    """Whether a top-level module is one of Python's or of `LIBRARIES`, or was installed, other than as editable."""
    if top in OWN:
        return False
    if top in sys.stdlib_module_names or top in LIBRARIES or (module := find_module(top)) is None:
        return True
    places = module.folders if module.file is None else (module.file,)
    return all(any(place.is_relative_to(folder) for folder in _installed_folders()) for place in places)


def _find_top(name: str) -> Module | None:
    try:
        spec = importlib.util.find_spec(name)
    except ValueError:  # it is loaded and comes from nowhere
        return None
    if spec is None:
        return None
    folders = tuple(map(Path, spec.submodule_search_locations or ()))
    file = Path(spec.origin) if spec.has_location and spec.origin else None
    return Module(name, file, folders) if file is not None or folders else None


def _find_in(folders: tuple[Path, ...], name: str, last: str) -> Module | None:
    """The submodule in the folders of its package, in the order in which Python looks."""
    for folder in folders:
        inside = folder / last
        if (inside / "__init__.py").is_file():
            return Module(name, inside / "__init__.py", (inside,))
        for suffix in (*EXTENSION_SUFFIXES, ".py"):
            if (file := folder / f"{last}{suffix}").is_file():
                return Module(name, file)
    inside = tuple(folder / last for folder in folders if (folder / last).is_dir())
    return Module(name, None, inside) if inside else None


@functools.cache
def _installed_folders() -> tuple[Path, ...]:
    found = {Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    found |= {Path(entry) for entry in sys.path if Path(entry).name in ("site-packages", "dist-packages")}
    return tuple(found | {folder.resolve() for folder in found})


# What a package runs besides Python: CUDA and C++ sources, headers, and the tables that it ships.

SOURCES = (".cu", ".cuh", ".cpp", ".cc", ".cxx", ".c", ".h", ".hpp", ".inl")
TABLES = (".json",)

# What is remembered was read by this very file.
_NATIVE_READER = f"native {hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:16]}"

# Literals come first, so that a // inside one begins no comment. A character literal is one character or one escape: the
# separators of 1'000'000 begin none.
_LITERAL_OR_SPACE = re.compile(
    r"""
    (?P<literal> R"(?P<mark>[^()\\\s]{0,16})\(.*?\)(?P=mark)" | "(?:\\.|[^"\\\n])*" | '(?:\\[^'\n]+|[^'\\\n])' )
    | (?P<space> (?: //(?:\\\n|[^\n])* | /\*.*?\*/ | \\\n | [^\S\n] )+ )
    """,
    re.VERBOSE | re.DOTALL,
)


def native_sources(modules: Iterable[Module], suffixes: tuple[str, ...] = SOURCES) -> dict[str, Path]:
    """Files that belong to the packages of these modules: "package/file" -> where it lies, in this order.

    A file belongs to the nearest package: it lies in the folder of the package, or in a folder of that which is none itself.
    To a module in no package belongs what lies beside it.
    """
    found: dict[str, Path] = {}
    for module in modules:
        if module.file is not None:
            nested = bool(module.package)
            for file in _files(module.file.parent, nested):
                if file.suffix in suffixes:
                    found[f"{module.package or module.name}/{file.relative_to(module.file.parent).as_posix()}"] = file
    return dict(sorted(found.items()))


def native_digest(files: dict[str, Path]) -> str:
    """Digest of names and contents; comments, blank lines and the width of gaps in CUDA and C++ do not count."""
    hashed = hashlib.sha256()
    for name, file in files.items():
        hashed.update(f"{name}\0{_content_digest(file)}\0".encode())
    return hashed.hexdigest()


def without_layout(source: str) -> str:
    """C++ or CUDA source without comments, each gap outside literals one space wide; only directives have lines."""
    literals: list[str] = []

    def held(found: re.Match) -> str:
        if found["literal"] is None:
            return " "
        literals.append(found["literal"])
        return f"\0{len(literals) - 1}\0"

    code = "".join(
        f"\n{line.strip()}\n" if line.lstrip().startswith("#") else f"{line.strip()} "
        for line in _LITERAL_OR_SPACE.sub(held, source).split("\n")
        if line.strip()
    )
    lines = (line.strip() for line in code.split("\n") if line.strip())
    return re.sub("\0(\\d+)\0", lambda found: literals[int(found[1])], "\n".join(lines))


@cache
def _content_digest(file: Path) -> str:
    """Of the file when this process first asked, as the libraries that are built from it."""
    content = file.read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    return (
        remembered(f"{_NATIVE_READER} {digest}", lambda: _source_digest(content)) if file.suffix in SOURCES else digest
    )


def _source_digest(content: bytes) -> str:
    code = without_layout(content.decode(errors="surrogateescape"))
    return hashlib.sha256(code.encode(errors="surrogateescape")).hexdigest()


@cache
def _files(folder: Path, nested: bool) -> tuple[Path, ...]:
    return tuple(_walk(folder, nested))


def _walk(folder: Path, nested: bool) -> Iterator[Path]:
    for path in folder.iterdir():
        if path.is_file():
            yield path
        elif nested and not path.name.startswith((".", "__pycache__")) and not (path / "__init__.py").exists():
            yield from (file for file in path.iterdir() if file.is_file())


# The modules that a piece of code is made of: what it imports, what that imports, and so on; nothing is executed.


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


# Modules that name, find, check and hold what a run is made of, and change no result.
BOOKKEEPING = (
    "sparsefront.artifacts",
    "sparsefront.config",
    "sparsefront.settings_class",
    "sparsefront.errors",
    "sparsefront.gpu",
    "sparsefront.stages.keys",
    "sparsefront.progress",
    "sparsefront.pruning.storage_check",
)


def code_digest(modules: Iterable[Module]) -> str:
    """Digest of the modules' Python and, of packages that are not ours, of the CUDA and C++ sources that belong to them, and
    of the versions of other libraries that they import.

    Which kernels of `sparsefront_kernels` a stage runs, its Python does not tell: their sources have a digest of their own.
    """
    hashed, foreign = hashlib.sha256(), []
    for module in modules:
        hashed.update(f"{module.name}\0{source_of(module.file).digest}\0".encode())
        if module.name.partition(".")[0] not in OWN:
            foreign.append(module)
    hashed.update(native_digest(native_sources(foreign)).encode())
    hashed.update(repr(_library_versions(foreign)).encode())
    return hashed.hexdigest()[:DIGITS]


def _library_versions(modules: Iterable[Module]) -> list[tuple[str, str | None]]:
    """What installed libraries besides our own say of themselves; None of those that say nothing, or are missing."""
    imported = {name.partition(".")[0] for module in modules for name, _ in source_of(module.file).imports}
    known = LIBRARIES | sys.stdlib_module_names | {""}  # "": of a relative import
    libraries = sorted(name for name in imported - known if counts_by_version(name))
    found = versions(*libraries)
    return [(name, found[name] or getattr(sys.modules.get(name), "__version__", None)) for name in libraries]
