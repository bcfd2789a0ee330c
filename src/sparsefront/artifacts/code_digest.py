"""Digest of the code that can change a result: all modules reachable by imports, CUDA sources, and versions of libraries.

Imports are followed without executing anything, also those inside functions, so no list of files can forget one and a new file
changes no digest. Comments, docstrings and layout do not count.
"""

import ast
import hashlib
import importlib.util
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.machinery import PathFinder
from pathlib import Path

from sparsefront.artifacts.content_digest import DIGITS, load_or_make, versions
from sparsefront.processes import gc_disabled

OWN = frozenset({"sparsefront", "sparsefront_kernels"})
# Count by version even where they are imported from a checkout.
LIBRARIES = frozenset("torch torchvision triton pytorch_lightning lightning transformers numpy quack cutlass".split())
SITE = {"site-packages", "dist-packages"}
# Modules that name, find, check and store results without affecting them; of kernels, ops of exported programs alone.
BOOKKEEPING = (
    "sparsefront.artifacts",
    "sparsefront.config",
    "sparsefront.settings_class",
    "sparsefront.errors",
    "sparsefront.gpu",
    "sparsefront.stages.keys",
    "sparsefront.progress",
    "sparsefront.pruning.preconditions",
    "sparsefront.results.record",
    "sparsefront.results.run_folder",
    "sparsefront_kernels.recurrent.loop",
)
NATIVE = (".cu", ".cuh", ".cpp", ".cc", ".cxx", ".c", ".h", ".hpp", ".inl")
TABLES = (".json",)
# Memoized values depend on this file and on the Python version.
_READER = f"{sys.version_info[:2]} {hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:16]}"


@cache
def code_digest(*roots: str, without: tuple[str, ...] = BOOKKEEPING, kernels: bool = False) -> str:
    """Digest of all that modules import: Python code; of packages that are not ours also native sources next to it, and the
    versions of other libraries.

    Args:
        roots, without: as in `import_closure`.
        kernels: whether CUDA sources and tables of `sparsefront_kernels` count too.
    """
    files = import_closure(roots, without)
    foreign = {name: file for name, file in files.items() if name.partition(".")[0] not in OWN}
    native = _native_files(foreign, NATIVE)
    if kernels:
        own = {name: file for name, file in files.items() if name.startswith("sparsefront_kernels.")}
        native |= _native_files(own, (*NATIVE, *TABLES))
    content = [(name, source_of(file).digest) for name, file in files.items()]
    content += [(name, _native_digest(file)) for name, file in sorted(native.items())]
    return hashlib.sha256(repr((content, _library_versions(foreign))).encode()).hexdigest()[:DIGITS]


def import_closure(roots: Iterable[str], without: tuple[str, ...] = BOOKKEEPING) -> dict[str, Path]:
    """Find all modules with source that are reachable from some.

    Args:
        roots: dotted names of modules, or of names in them. Their packages are followed wherever they lie, and others unless
            they count by version. Importing a name from a package whose `__init__` only re-exports it depends on the module
            that defines it, not on the package. Missing modules are ignored.
        without: modules and packages to skip.
    Returns:
        module -> its file, sorted.
    """
    tops, waiting = {root.partition(".")[0] for root in roots}, list(roots)
    files: dict[str, Path] = {}
    seen: set[str] = set()
    while waiting:
        name = waiting.pop()
        top = name.partition(".")[0]
        skipped = any(f"{name}.".startswith(f"{module}.") for module in without)
        if name in seen or skipped or (top not in tops and counts_by_version(top)):
            continue
        seen.add(name)
        if "*" in name:  # modules that a package discovers in its folders
            package, _, module = name.partition(".*.")
            paths = [path for folder in find_module(package)[1] for path in Path(folder).glob(f"*/{module}.py")]
            waiting += [f"{package}.{path.parent.name}.{module}" for path in paths]
            continue
        parent, _, last = name.rpartition(".")
        if parent:  # its code runs first; for a name of a module, it defines the name
            exports = _exports(parent)
            waiting += [parent] if exports is None else _absolute({exports.get(last)} - {None}, parent)
        file, _ = find_module(name)
        if file is not None:
            files[name] = file
            waiting += _absolute(source_of(file).imports, name)
    return dict(sorted(files.items()))


@cache
def find_module(name: str) -> tuple[Path | None, tuple[str, ...]]:
    """The file of a module as it is or would be loaded, None if it has none; and the folders of a package's submodules.

    Cached per process: edits count from the next process on, as for imports.
    """
    loaded = sys.modules.get(name)
    if getattr(loaded, "__file__", None):
        return Path(loaded.__file__), tuple(getattr(loaded, "__path__", ()))
    parent = name.rpartition(".")[0]
    try:
        spec = PathFinder.find_spec(name, find_module(parent)[1]) if parent else importlib.util.find_spec(name)
    except ValueError:  # loaded, but without a spec
        spec = None
    if spec is None:
        return None, ()
    file = Path(spec.origin) if spec.has_location and spec.origin else None
    return file, tuple(spec.submodule_search_locations or ())


def counts_by_version(top: str) -> bool:
    """Whether a top-level module is of Python or in `LIBRARIES`, was installed (other than as editable), or is missing."""
    file, folders = find_module(top)
    installed = all(SITE & set(Path(place).parts) for place in (folders if file is None else (file,)))
    return top not in OWN and (top in sys.stdlib_module_names or top in LIBRARIES or installed)


def _package(name: str) -> str:
    """The package that a module's relative imports start from; "" if there is none."""
    return name if find_module(name)[1] else name.rpartition(".")[0]


def _absolute(names: Iterable[str], module: str) -> Iterator[str]:
    """Dotted names of what a module imports, without those that fail: `try: from . import helper` in one that also runs alone."""
    for name in names:
        with suppress(ImportError):
            yield importlib.util.resolve_name(name, _package(module))


def _exports(package: str) -> dict[str, str] | None:
    """Name -> its origin, in a package that only re-exports; None for any other module."""
    file, folders = find_module(package)
    return source_of(file).exports if file is not None and folders else {} if folders else None


@dataclass(frozen=True)
class PythonSource:
    """One file.

    Args:
        digest: of the code.
        imports: dotted names of modules and of names in them, also inside functions, except under `if TYPE_CHECKING`;
            relative ones with leading dots.
        exports: name -> its origin, if the file only imports names, like many package `__init__`s; else None.
    """

    digest: str
    imports: tuple[str, ...]
    exports: dict[str, str] | None


@cache
def source_of(file: Path) -> PythonSource:
    """The file as this process first read it, because running code was imported then."""
    return read_python(file.read_bytes())


def read_python(code: bytes) -> PythonSource:
    """Parse a file; one that this Python cannot parse (a compiled extension) gets the digest of its bytes."""
    key = f"python {_READER} {hashlib.sha256(code).hexdigest()}"
    digest, imports, exports = load_or_make(key, lambda: list(vars(_parse(code)).values()))
    return PythonSource(digest, tuple(imports), exports)


# A syntax tree has no cycles, but its many nodes trigger collections over all of torch: half of the time.
@gc_disabled()
def _parse(code: bytes) -> PythonSource:
    try:
        tree = ast.parse(code)
        imports = [name for statement in _code_of(tree) for name in _read_imports(statement).values()]
        digest = hashlib.sha256(ast.dump(tree).encode()).hexdigest()
    except (SyntaxError, ValueError, RecursionError):
        return PythonSource(hashlib.sha256(code).hexdigest(), (), None)
    if b"import_module" in code:
        imports += filter(None, map(_module_named, ast.walk(tree)))
    exports = {name: origin for statement in tree.body for name, origin in _read_imports(statement).items()}
    only_imports = "*" not in exports and all(map(_re_exports, tree.body))
    return PythonSource(digest, tuple(dict.fromkeys(imports)), exports if only_imports else None)


def _code_of(node: ast.AST) -> Iterator[ast.AST]:
    """All statements in a node, from which docstrings, other lone strings and what only type checkers read are removed."""
    for field in ("body", "orelse", "finalbody", "handlers", "cases"):
        parts = getattr(node, field, ())
        if isinstance(parts, list):
            parts[:] = [left for part in parts for left in _without_text(part)]
            for part in parts:
                yield part
                yield from _code_of(part)


def _without_text(statement: ast.AST) -> list:
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
        return [] if isinstance(statement.value.value, str) else [statement]
    if isinstance(statement, ast.If) and _name(statement.test) == "TYPE_CHECKING":
        return [left for part in statement.orelse for left in _without_text(part)]
    return [statement]


def _module_named(node: ast.AST) -> str:
    """What a call of `import_module` imports, else "".

    `import_module(f"package.{family}.module")` imports "package.*.module", such a module in every folder of the package.
    """
    if not (isinstance(node, ast.Call) and _name(node.func) == "import_module" and node.args):
        return ""
    parts = node.args[0].values if isinstance(node.args[0], ast.JoinedStr) else [node.args[0]]
    name = "".join(str(part.value) if isinstance(part, ast.Constant) else "*" for part in parts)
    return "" if name.startswith("*") else name


def _re_exports(statement: ast.stmt) -> bool:
    """Whether a statement only names: not `import patches`, which alone must be for its side effects."""
    assigned = statement.targets[0] if isinstance(statement, ast.Assign) else None
    return isinstance(statement, ast.ImportFrom) or (assigned is not None and _name(assigned).startswith("__"))


def _name(node: ast.expr) -> str:
    """The last part of a dotted name; "" for any other expression."""
    return getattr(node, "attr", getattr(node, "id", ""))


def _read_imports(node: ast.AST) -> dict[str, str]:
    """Local name -> dotted name of what a statement imports."""
    if isinstance(node, ast.Import):
        return {alias.name: alias.name for alias in node.names}
    if not isinstance(node, ast.ImportFrom):
        return {}
    package = "." * node.level + (node.module or "")
    start = f"{package}." if node.module else package
    return {alias.asname or alias.name: package if alias.name == "*" else start + alias.name for alias in node.names}


# CUDA and C++ sources, headers, and data tables of a package.

# Literals come first, so that // inside one does not begin a comment. A character literal is one character or one escape,
# so the separators of 1'000'000 do not begin one.
_LITERAL_OR_COMMENT = re.compile(
    r"""(R"(?P<mark>[^()\\\s]{0,16})\(.*?\)(?P=mark)"|"(?:\\.|[^"\\\n])*"|'(?:\\[^'\n]+|[^'\\\n])')|//[^\n]*|/\*.*?\*/""",
    re.DOTALL,
)


def _native_files(modules: dict[str, Path], suffixes: tuple[str, ...]) -> dict[str, Path]:
    """Files next to modules and, of packages, in folders there: "package/file" -> its path."""
    patterns = {name: ("*", "*/*") if _package(name) else ("*",) for name in modules}
    return {
        f"{_package(name)}/{path.relative_to(file.parent)}": path
        for name, file in modules.items()
        for pattern in patterns[name]
        for path in file.parent.glob(pattern)
        if path.suffix in suffixes
    }


@cache
def _native_digest(file: Path) -> str:
    """Digest of a file as this process first read it, as for the libraries built from it."""
    content = file.read_bytes()
    if file.suffix in NATIVE:
        content = without_layout(content.decode(errors="surrogateescape")).encode(errors="surrogateescape")
    return hashlib.sha256(content).hexdigest()


def without_layout(source: str) -> str:
    """C++ or CUDA source without comments, empty lines and the width of spaces."""
    code = _LITERAL_OR_COMMENT.sub(lambda part: part[1] or " ", source)
    return "\n".join(" ".join(line.split()) for line in code.splitlines() if line.strip())


def _library_versions(modules: dict[str, Path]) -> list[tuple[str, str | None]]:
    """Versions of third-party libraries that these modules import; None if unknown or not installed."""
    imported = {name.partition(".")[0] for file in modules.values() for name in source_of(file).imports}
    libraries = sorted(top for top in imported - sys.stdlib_module_names if top and counts_by_version(top))
    installed = versions(*libraries)
    return [(name, installed[name] or getattr(sys.modules.get(name), "__version__", None)) for name in libraries]
