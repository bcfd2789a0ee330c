"""What code is made of: all that it imports, of packages that do not count by version; what only people read does not count."""

import importlib.util
import sys

import pytest

from sparsefront.artifacts import code_digest as code_digest_module
from sparsefront.artifacts.code_digest import code_digest, counts_by_version, import_closure, read_python

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
CUDA = """#include "work.cuh"
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
NATIVE = {
    "package/__init__.py": "",
    "package/op.py": CODE,
    "package/cuda/add.cu": CUDA,
    "package/cuda/work.cuh": "constexpr int kWidth = 64;\n",
    "package/inner/__init__.py": "",
    "package/inner/rest/inner.cu": "int inner;\n",
}
COUNTS = [
    ("op.py", "LIMIT = 3", "LIMIT = 4"),
    ("op.py", "LIMIT = 3", "LIMIT = 3.0"),
    ("op.py", "a # b", "a # c"),
    ("op.py", "x * LIMIT", "x + LIMIT"),
    ("op.py", "self, x", "self, x=1"),
    ("op.py", "def weigh", "def weight"),
    ("op.py", "import os\n\nLIMIT = 3", "LIMIT = 3\n\nimport os"),
    ("cuda/add.cu", "+=", "-="),
    ("cuda/add.cu", "// in a string", "// in another string"),
    ("cuda/add.cu", "2 * (x)", "3 * (x)"),
    ("cuda/work.cuh", "64", "32"),
]
DOES_NOT_COUNT = [
    ("op.py", "# of everything", "# of this module"),
    ("op.py", "  # of everything", ""),
    ("op.py", "import os\n", "import os\n\n\n"),
    ("op.py", "What it is for.", "What it was for."),
    ("op.py", '        """Its weight."""\n', ""),
    ("op.py", "How large it is.", "Its size."),
    ("op.py", "x * LIMIT if x else label", "(\n            x * LIMIT\n            if x else label\n        )"),
    ("op.py", '"a # b"', "'a # b'"),
    ("cuda/add.cu", "// sums of a tile\n", "// sums of a tile,\n\n// by one block\n"),
    ("cuda/add.cu", "// sums of a tile\n", ""),
    ("cuda/add.cu", "// end", "// the end of 'it"),
    ("cuda/add.cu", ' "work.cuh"', '   "work.cuh"  // of a tile'),
    ("inner/rest/inner.cu", "int inner", "int other"),
]


@pytest.mark.parametrize(
    ("file", "old", "new", "counts"), [(*edit, True) for edit in COUNTS] + [(*edit, False) for edit in DOES_NOT_COUNT]
)
def test_code_counts_and_text_does_not(own_modules, file, old, new, counts):
    own_modules(NATIVE)
    before, content = code_digest("package.op"), NATIVE[f"package/{file}"]
    assert content.count(old) == 1
    own_modules({f"package/{file}": content.replace(old, new)})
    assert (code_digest("package.op") != before) is counts


def test_renamed_and_new_sources_count(own_modules):
    folder = own_modules(NATIVE)
    digests = {code_digest("package.op")}
    (folder / "package/cuda/add.cu").rename(folder / "package/cuda/sum.cu")
    own_modules({})
    digests.add(code_digest("package.op"))
    own_modules({"package/cuda/new.cuh": ""})
    assert len(digests | {code_digest("package.op")}) == 3


def test_imports_of_a_file():
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
    assert {*read_python(code.encode()).imports} == {"a.b", "c", "d.e", "d.f", ".h", "..up.i", "j", "k", "l.m", "n.o"}


@pytest.mark.parametrize("content", [b"\x7fELF\x00\x01", b"def f(:\n"])
def test_files_that_are_no_python(content):
    source = read_python(content)
    assert source.imports == () and source.digest != read_python(content + b" ").digest


USER = {
    "mine/__init__.py": "from mine.pattern import Mine\nfrom .other import Other\n__all__ = ['Mine']\n",
    "mine/pattern.py": "import json\nimport torch\nfrom . import scores\nfrom mine.deep import late\nclass Mine: ...\n",
    "mine/scores.py": "try:\n    from .missing import x\nexcept ImportError:\n    from helper import x\n",
    "mine/other.py": "class Other: ...\n",
    "mine/deep/__init__.py": "",
    "mine/deep/late.py": "def f():\n    from mine.lazy import g\n",
    "mine/lazy.py": "def g(): ...\n",
    "mine/unused.py": "",
    "helper.py": "x = 1\n",
    "alone.py": "try:\n    from . import friend\nexcept ImportError:\n    import friend\n",
    "friend.py": "",
    "user.py": "from mine import Other\n",
    "whole.py": "import mine\n",
    "patched/__init__.py": "import helper\n",
    "patched/part.py": "",
}
OF_MINE = {"mine.pattern", "mine.scores", "helper", "mine.deep.late", "mine.lazy"}


@pytest.mark.parametrize(
    ("root", "modules"),
    [
        ("mine.pattern", OF_MINE),
        ("mine.Mine", OF_MINE),
        ("mine.Other", {"mine.other"}),
        ("user", {"user", "mine.other"}),
        ("whole", {"whole", "mine", "mine.other", *OF_MINE}),
        ("alone", {"alone", "friend"}),
        ("patched.part", {"patched", "patched.part", "helper"}),
    ],
)
def test_imports_are_followed_without_running_them(own_modules, root, modules):
    own_modules(USER)
    assert {*import_closure([root])} == modules
    assert not {"mine", "helper"} & sys.modules.keys()


@pytest.mark.parametrize(
    ("file", "content", "counts"),
    [
        ("helper.py", "x = 2\n", True),
        ("mine/lazy.py", "def g(): return 1\n", True),
        ("mine/other.py", "class Other: size = 1\n", False),
        ("mine/new.py", "x = 1\n", False),
        ("mine/sum.cu", "int sum;\n", True),
        ("mine/cuda/sum.cuh", "int sum;\n", True),
        ("mine/deep/sum.cu", "int sum;\n", True),
        ("mine/rest/__init__.py", "", False),
        ("mine/rows.json", "{}", False),
    ],
)
def test_edits_count_where_they_matter(own_modules, file, content, counts):
    own_modules(USER)
    before = code_digest("mine.Mine")
    own_modules({file: content})
    assert (code_digest("mine.Mine") != before) is counts


def test_installs_count_by_source_or_version(own_modules, tmp_path, monkeypatch):
    """The import hooks of an editable install give a place outside site-packages."""
    files = {"hidden/src/edited/__init__.py": "", "hidden/src/edited/part.py": "import settled\n"}
    place = own_modules(files) / "hidden" / "src" / "edited"
    site = tmp_path / "lib" / "site-packages"
    (site / "settled").mkdir(parents=True)
    (site / "settled" / "__init__.py").write_text("from settled import part\nX = 1\n")
    (site / "settled" / "part.py").touch()
    monkeypatch.syspath_prepend(site)

    class Finder:
        @staticmethod
        def find_spec(name, path=None, target=None):
            if name != "edited":
                return None
            return importlib.util.spec_from_file_location(
                name, place / "__init__.py", submodule_search_locations=[str(place)]
            )

    monkeypatch.setattr(sys, "meta_path", [Finder, *sys.meta_path])
    assert not counts_by_version("edited") and counts_by_version("settled")
    assert "settled" not in import_closure(["edited.part"])
    assert {*import_closure(["settled"])} == {"settled", "settled.part"}, "a root is followed wherever it lies"


def test_versions_of_imported_libraries_count(own_modules, monkeypatch):
    digests = set()
    for library, version in (("einops", "1"), ("einops", "2"), ("json", "2"), ("json", "3")):
        own_modules({"mine.py": f"import {library} as library\n"})
        monkeypatch.setattr(code_digest_module, "versions", lambda *names, v=version: dict.fromkeys(names, v))
        digests.add(code_digest("mine"))
    assert len(digests) == 3, "Python's own modules have none"


def test_discovered_modules_are_imported():
    files = import_closure(["sparsefront_kernels.registry"])
    assert {
        "sparsefront_kernels.csr.format",
        "sparsefront_kernels.csr.entries",
        "sparsefront_kernels.csr.sm90",
    } <= files.keys()
