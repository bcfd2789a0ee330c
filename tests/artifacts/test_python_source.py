"""What of a Python file counts: the code; and which imports are seen.

The digest of CUDA sources and tables: what can change a result changes it, comments and layout do not.
"""

import pytest

from sparsefront.artifacts.code_digest import (
    SOURCES,
    TABLES,
    import_closure,
    native_digest,
    native_sources,
    read_python,
)

CODE = '''"""What it is for."""

import os

LIMIT = 3  # of everything


class Part:
    """A part."""

    size: int = 4
    """How large it is."""

    def weigh(self, x):
        """Its weight."""
        label = "a # b"
        return x * LIMIT if x else label
'''
NOTHING = {
    "a comment": ("# of everything", "# of this module"),
    "no comment": ("  # of everything", ""),
    "blank lines": ("import os\n", "import os\n\n\n"),
    "the docstring of the module": ("What it is for.", "What it was for."),
    "the docstring of a function": ("Its weight.", "Its weight, in grams."),
    "no docstring": ('        """Its weight."""\n', ""),
    "the description of an attribute": ("How large it is.", "Its size."),
    "layout": ("x * LIMIT if x else label", "(\n            x * LIMIT\n            if x else label\n        )"),
    "quotes": ('"a # b"', "'a # b'"),
}
SOMETHING = {
    "a constant": ("LIMIT = 3", "LIMIT = 4"),
    "its type": ("LIMIT = 3", "LIMIT = 3.0"),
    "a string in use": ("a # b", "a # c"),
    "an operator": ("x * LIMIT", "x + LIMIT"),
    "a default": ("self, x", "self, x=1"),
    "a name": ("def weigh", "def weight"),
    "another order": ("import os\n\nLIMIT = 3", "LIMIT = 3\n\nimport os"),
}


def changed(old: str, new: str) -> str:
    assert CODE.count(old) == 1
    return read_python(CODE.replace(old, new).encode()).digest


@pytest.mark.parametrize("change", NOTHING)
def test_what_only_people_read_does_not_count(change):
    assert changed(*NOTHING[change]) == read_python(CODE.encode()).digest


@pytest.mark.parametrize("change", SOMETHING)
def test_code_counts(change):
    assert changed(*SOMETHING[change]) != read_python(CODE.encode()).digest


def test_imports_are_found_wherever_they_stand():
    code = """
import a.b, c as other
from d import e, f as g
from . import h
from ..up.i import *
if TYPE_CHECKING:
    import unseen
    if True:
        from unseen import this
else:
    import j
def late():
    import k
    try:
        from l import m
    except ImportError:
        importlib.import_module("n.o")
    import_module(name)
"""
    assert set(read_python(code.encode()).imports) == {
        ("a.b", None),
        ("c", None),
        ("d", "e"),
        ("d", "f"),
        (".", "h"),
        ("..up.i", None),
        ("j", None),
        ("k", None),
        ("l", "m"),
        ("n.o", None),
    }


def test_a_file_that_only_re_exports_says_from_where():
    code = '"""A package."""\nfrom .b import C, D as E\nF = C\n__all__ = ["C"]\n__version__ = "1"\n'
    assert read_python(code.encode()).exports == {"C": (".b", "C"), "E": (".b", "D"), "F": (".b", "C")}


@pytest.mark.parametrize("content", [b"\x7fELF\x00\x01", b"def f(:\n"])
def test_what_is_no_python_counts_by_its_bytes(content):
    found = read_python(content)
    assert found.imports == () and found.digest != read_python(content + b" ").digest


SOURCE = """#include "work.cuh"
#define TWICE(x) \\
    (2 * (x))
// sums of a tile
__global__ void add(float* y) {  /* one
   block */
  asm volatile("bar.sync 0; // in a string");
  y[1'000] += 'a' + '"' + '\\''; // end
  print(R"(two
    lines  // of text)");
}
"""
FILES = {
    "package/__init__.py": "",
    "package/op.py": "",
    "package/cuda/add.cu": SOURCE,
    "package/cuda/work.cuh": "constexpr int kWidth = 64;\n",
    "package/tuned/gpu.json": '{"block_m": 128}\n',
    "package/inner/__init__.py": "",
    "package/inner/inner.cu": "int inner;\n",
}


def digest_of() -> str:
    return native_digest(native_sources(import_closure((("package.op", None),)), (*SOURCES, *TABLES)))


CHANGES = [
    ("package/cuda/add.cu", "+=", "-="),
    ("package/cuda/add.cu", "// in a string", "// in another string"),
    ("package/cuda/add.cu", "two\n    lines", "two\n  lines"),
    ("package/cuda/add.cu", "bar.sync 0; ", "bar.sync 0;  "),
    ("package/cuda/add.cu", "2 * (x)", "3 * (x)"),
    ("package/cuda/work.cuh", "64", "32"),
    ("package/tuned/gpu.json", "128", "256"),
]


@pytest.mark.parametrize(("name", "old", "new"), CHANGES)
def test_what_can_change_a_result_counts(own_modules, name, old, new):
    own_modules(FILES)
    before = digest_of()
    assert old in FILES[name]
    own_modules({name: FILES[name].replace(old, new)})
    assert digest_of() != before


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("// sums of a tile\n", "// sums of a tile,\n\n// by one block\n"),
        ("// sums of a tile\n", ""),
        ("// end", "// the end of 'it"),
        ("  /* one\n   block */", ""),
        ("float* y", "float*\n    y"),
        ("{  /*", "\n{  /*"),
        (' "work.cuh"', '   "work.cuh"  // of a tile'),
        ("(x) \\\n    (2", "(x) (2"),
    ],
)
def test_comments_and_layout_do_not_count(own_modules, old, new):
    own_modules(FILES)
    before = digest_of()
    assert old in SOURCE
    own_modules({"package/cuda/add.cu": SOURCE.replace(old, new)})
    assert digest_of() == before


def test_a_renamed_and_a_new_source_count(own_modules):
    folder = own_modules(FILES)
    found = {digest_of()}
    (folder / "package" / "cuda" / "add.cu").rename(folder / "package" / "cuda" / "sum.cu")
    own_modules({})
    found.add(digest_of())
    own_modules({"package/cuda/new.cuh": ""})
    found.add(digest_of())
    assert len(found) == 3


def test_a_file_belongs_to_the_nearest_package(own_modules):
    own_modules(FILES)
    before = digest_of()
    own_modules({"package/inner/inner.cu": "int other;\n"})
    assert digest_of() == before
