"""What a package runs besides Python: CUDA and C++ sources, headers, and the tables that it ships."""

import hashlib
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

from sparsefront.artifacts.digest_memo import remembered
from sparsefront.artifacts.python_modules import Module

SOURCES = (".cu", ".cuh", ".cpp", ".cc", ".cxx", ".c", ".h", ".hpp", ".inl")
TABLES = (".json",)

# What is remembered was read by this very file.
_READER = f"native {hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:16]}"

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
    return remembered(f"{_READER} {digest}", lambda: _source_digest(content)) if file.suffix in SOURCES else digest


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
