"""What of a Python file counts: the code; and which imports are seen."""

import pytest

from sparsefront.artifacts.code_digest import read_python

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


@pytest.mark.parametrize(
    "more", ["import patches", "LIMIT = 3", "def f(): ...", "from .b import *", "C.size = 3", "f()"]
)
def test_a_file_that_does_more_counts_itself(more):
    assert read_python(f"from .b import C\n{more}\n".encode()).exports is None


@pytest.mark.parametrize("content", [b"\x7fELF\x00\x01", b"def f(:\n"])
def test_what_is_no_python_counts_by_its_bytes(content):
    found = read_python(content)
    assert found.imports == () and found.digest != read_python(content + b" ").digest
