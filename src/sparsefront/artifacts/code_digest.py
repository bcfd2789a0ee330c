"""Digest of code: all modules reachable by imports, native sources, and versions of libraries."""

import ast
import functools
import hashlib
import importlib.util
import re
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

from sparsefront.artifacts.content_digest import DIGITS, remembered, versions
from sparsefront.processes import gc_disabled

# Code and imports of a Python file, read from its syntax tree without executing it.

Import = tuple[str, str | None]
"""(module, name): `from module import name`, a relative module with leading dots; name None = the whole module."""


@dataclass(frozen=True)
class PythonSource:
    """One file.

    Args:
        digest: of the code, excluding comments, docstrings, blank lines and formatting.
        imports: all imports, also inside functions, except under `if TYPE_CHECKING`.
        exports: name -> its origin, if the file only re-exports and renames names, like many package `__init__`s; else
            None.
    """

    digest: str
    imports: tuple[Import, ...]
    exports: dict[str, Import] | None


# Memoized values depend on this file and on the Python version.
_PYTHON_READER = f"python {sys.version_info[:2]} {hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:16]}"


def read_python(code: bytes) -> PythonSource:
    """Parse a file; one that this Python cannot parse (a compiled extension) gets the digest of its bytes."""

    def read() -> list:
        parsed = _parsed(code)
        return [parsed.digest, parsed.imports, parsed.exports]

    digest, imports, exports = remembered(f"{_PYTHON_READER} {hashlib.sha256(code).hexdigest()}", read)
    origins = None if exports is None else {name: tuple(origin) for name, origin in exports.items()}
    return PythonSource(digest, tuple(map(tuple, imports)), origins)


# A syntax tree has no cycles, but its many nodes trigger collections over all of torch: half of the time.
@gc_disabled()
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
    """Serializes a tree, without positions and without what depends on the Python version, and collects imports."""

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
            if value is None or value == [] or field == "ctx":  # implied by the structure of the tree
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
        elif isinstance(node, ast.Call) and (module_name := _import_by_name(node)) is not None:
            self.imports.append((module_name, None))


def _is_text(statement: ast.AST) -> bool:
    """Whether a statement is a lone string: a docstring, or the description of an attribute."""
    if not (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)):
        return False
    return isinstance(statement.value.value, str)


def _module(statement: ast.ImportFrom) -> str:
    return "." * statement.level + (statement.module or "")


def _only_for_types(statement: ast.If) -> bool:
    name = statement.test.attr if isinstance(statement.test, ast.Attribute) else getattr(statement.test, "id", None)
    return name == "TYPE_CHECKING"


def _import_by_name(call: ast.Call) -> str | None:
    """The module of `importlib.import_module("module")`; None for other calls, or a computed name."""
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
            elif not all(name.startswith("__") and name.endswith("__") for name in names):  # as __all__
                return None
        elif not _is_text(statement) and not (isinstance(statement, ast.If) and _only_for_types(statement)):
            return None  # including a plain `import patches`, which must be for its side effects
    return exports


# Find a module's source without importing it, and decide which modules count by version instead.

OWN = frozenset({"sparsefront", "sparsefront_kernels"})
# Covered by their versions (see `digest.versions`), even if imported from a checkout.
LIBRARIES = frozenset(
    "torch torchvision torchmetrics triton pytorch_lightning lightning lightning_fabric transformers tokenizers datasets "
    "huggingface_hub safetensors numpy pandas sklearn scipy PIL hydra omegaconf quack cutlass".split()
)


@dataclass(frozen=True)
class Module:
    """A module on disk.

    Args:
        name: dotted.
        file: its source or compiled extension; None for a package without `__init__`.
        folders: where a package's submodules are; empty for a plain module.
    """

    name: str
    file: Path | None
    folders: tuple[Path, ...] = ()

    @property
    def package(self) -> str:
        """The package that its relative imports start from; "" if there is none."""
        return self.name if self.folders else self.name.rpartition(".")[0]


@functools.cache
def find_module(name: str) -> Module | None:
    """Find a module as it is or would be loaded; None if it does not exist or has no file.

    Cached per process: edits count from the next process on, as for imports.
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
    """Whether a top-level module is of Python or in `LIBRARIES`, or was installed (other than as editable)."""
    if top in OWN:
        return False
    if top in sys.stdlib_module_names or top in LIBRARIES or (module := find_module(top)) is None:
        return True
    places = module.folders if module.file is None else (module.file,)
    return all(any(place.is_relative_to(folder) for folder in _installed_folders()) for place in places)


def _find_top(name: str) -> Module | None:
    try:
        spec = importlib.util.find_spec(name)
    except ValueError:  # loaded, but without a spec
        return None
    if spec is None:
        return None
    folders = tuple(map(Path, spec.submodule_search_locations or ()))
    file = Path(spec.origin) if spec.has_location and spec.origin else None
    return Module(name, file, folders) if file is not None or folders else None


def _find_in(folders: tuple[Path, ...], name: str, last: str) -> Module | None:
    """Find the submodule in its package's folders, in Python's lookup order."""
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
    folders = {Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    folders |= {Path(entry) for entry in sys.path if Path(entry).name in ("site-packages", "dist-packages")}
    return tuple(folders | {folder.resolve() for folder in folders})


# Non-Python files of a package: CUDA and C++ sources, headers, and data tables.

SOURCES = (".cu", ".cuh", ".cpp", ".cc", ".cxx", ".c", ".h", ".hpp", ".inl")
TABLES = (".json",)

# Memoized values depend on this file.
_NATIVE_READER = f"native {hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:16]}"

# Literals come first, so that // inside one does not begin a comment. A character literal is one character or one escape,
# so the separators of 1'000'000 do not begin one.
_LITERAL_OR_SPACE = re.compile(
    r"""
    (?P<literal> R"(?P<mark>[^()\\\s]{0,16})\(.*?\)(?P=mark)" | "(?:\\.|[^"\\\n])*" | '(?:\\[^'\n]+|[^'\\\n])' )
    | (?P<space> (?: //(?:\\\n|[^\n])* | /\*.*?\*/ | \\\n | [^\S\n] )+ )
    """,
    re.VERBOSE | re.DOTALL,
)


def native_sources(modules: Iterable[Module], suffixes: tuple[str, ...] = SOURCES) -> dict[str, Path]:
    """Files of these modules' packages: "package/file" -> its path, sorted.

    A file belongs to the nearest package: it is in that package's folder, or in a subfolder that is not a package. Files next
    to a module without a package belong to the module.
    """
    sources: dict[str, Path] = {}
    for module in modules:
        if module.file is not None:
            nested = bool(module.package)
            for file in _files(module.file.parent, nested):
                if file.suffix in suffixes:
                    sources[f"{module.package or module.name}/{file.relative_to(module.file.parent).as_posix()}"] = file
    return dict(sorted(sources.items()))


def native_digest(files: dict[str, Path]) -> str:
    """Digest of names and contents; comments, blank lines and whitespace width in CUDA and C++ do not count."""
    hashed = hashlib.sha256()
    for name, file in files.items():
        hashed.update(f"{name}\0{_content_digest(file)}\0".encode())
    return hashed.hexdigest()


def without_layout(source: str) -> str:
    """C++ or CUDA source without comments, with single spaces outside of literals; only directives have their own lines."""
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
    """Digest of the file when this process first read it, as for the libraries built from it."""
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


# Transitive import closure of code, without executing it.


@functools.cache
def import_closure(roots: tuple[Import, ...], *, without: tuple[str, ...] = ()) -> tuple[Module, ...]:
    """All modules with source that are reachable from the roots, sorted by name.

    Follows imports anywhere in a file, also inside functions, into every module that does not count by version; packages of
    roots are always followed. Importing a name from a package whose `__init__` only re-exports it depends on the module that
    defines it, not on the package.

    Args:
        roots: (module, name), or (module, None) for all of it. Missing modules are ignored.
        without: dotted modules and packages to skip.
    """
    closure = _Closure(frozenset(module.partition(".")[0] for module, _ in roots), without)
    for root in roots:
        closure.add(root)
    while closure.waiting:
        closure.follow(closure.waiting.pop())
    return tuple(closure.found[name] for name in sorted(closure.found))


@functools.cache
def source_of(file: Path) -> PythonSource:
    """The file as this process first read it, because running code was imported then."""
    return read_python(file.read_bytes())


class _Closure:
    """The search of `import_closure`.

    Args:
        tops: top-level modules that are always followed.
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
            self.add((f"{name}.{attribute}", None))  # if it is a submodule
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
        """Add parent packages, whose code runs first, unless they only re-export."""
        while name := name.rpartition(".")[0]:
            parent = find_module(name)
            if parent is not None and _exports(parent) is None:
                self.add((name, None))


def _exports(module: Module) -> dict[str, Import] | None:
    """Origins of the names of a package that only re-exports; None for any other module."""
    if not module.folders:
        return None
    return {} if module.file is None else source_of(module.file).exports


def _absolute(wanted: Import, module: Module) -> Import | None:
    """Resolve an import to its full name; None for a relative import beyond the top-level package, which fails."""
    name, attribute = wanted
    try:
        return (importlib.util.resolve_name(name, module.package) if name.startswith(".") else name), attribute
    except ImportError:  # such as `try: from . import helper` in a module that also runs standalone
        return None


# Modules that name, find, check and store results without affecting them.
BOOKKEEPING = (
    "sparsefront.artifacts",
    "sparsefront.config",
    "sparsefront.settings_class",
    "sparsefront.errors",
    "sparsefront.gpu",
    "sparsefront.stages.keys",
    "sparsefront.progress",
    "sparsefront.pruning.storage_check",
    "sparsefront.results.record",
    "sparsefront.results.run_folder",
)


def code_digest(modules: Iterable[Module]) -> str:
    """Digest of the modules' Python code, of native sources in packages that are not ours, and of the versions of other
    libraries that they import.

    Python code does not show which kernels of `sparsefront_kernels` a stage runs: their sources have a separate digest.
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
    """Versions of imported third-party libraries; None if unknown or not installed."""
    imported = {name.partition(".")[0] for module in modules for name, _ in source_of(module.file).imports}
    known = LIBRARIES | sys.stdlib_module_names | {""}  # "": relative imports
    libraries = sorted(name for name in imported - known if counts_by_version(name))
    installed = versions(*libraries)
    return [(name, installed[name] or getattr(sys.modules.get(name), "__version__", None)) for name in libraries]
