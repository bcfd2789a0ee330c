"""Digest of what a kernel package runs besides Python: CUDA sources, headers, and the tables that it ships."""

import hashlib
import importlib.util
import re
from functools import lru_cache
from pathlib import Path

from sparsefront.artifacts.digest import DIGITS

CUDA = (".cu", ".cuh")
TABLES = (".json",)

# Literals come first, so that a // inside one begins no comment. A character literal is one character or one escape: the
# separators of 1'000'000 begin none.
_LITERAL_OR_COMMENT = re.compile(
    r"""
    (?P<literal> "(?:\\.|[^"\\\n])*" | '(?:\\[^'\n]+|[^'\\\n])' )
    | //(?:\\\n|[^\n])* | /\*.*?\*/
    """,
    re.VERBOSE | re.DOTALL,
)


@lru_cache
def kernel_sources_digest(package: str) -> str:
    """Digest of a package's CUDA sources and headers, and of its JSON tables (launch parameters, constants of models).

    What a user tuned is not in it: it lies outside the package, and belongs to the record of a run.

    Args:
        package: dotted name; its folder is searched with all folders below it.
    Raises:
        ModuleNotFoundError: there is no such package.
    """
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(package)
    return folder_digest(Path(spec.submodule_search_locations[0]))


def folder_digest(folder: Path) -> str:
    """As `kernel_sources_digest`, of a folder."""
    hashed = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.suffix in (*CUDA, *TABLES)):
        content = path.read_text()
        hashed.update(path.relative_to(folder).as_posix().encode() + b"\0")
        hashed.update((without_comments(content) if path.suffix in CUDA else content).encode() + b"\0")
    return hashed.hexdigest()[:DIGITS]


def without_comments(source: str) -> str:
    """C++ or CUDA source without comments, blank lines and spaces at the ends of lines."""
    code = _LITERAL_OR_COMMENT.sub(lambda found: found["literal"] or " ", source)
    return "\n".join(line.strip() for line in code.splitlines() if line.strip())
