"""Which modules code is made of: all that it imports, of packages that do not count by version, and no others."""

import importlib.util
import sys

import pytest

from sparsefront.artifacts.code_digest import BOOKKEEPING, code_digest, counts_by_version, import_closure

USER = {
    "mine/__init__.py": "from mine.pattern import Mine\nfrom mine.other import Other\n",
    "mine/pattern.py": "import json\nimport torch\nfrom . import scores\nfrom mine.deep import late\nclass Mine: ...\n",
    "mine/scores.py": "try:\n    from .missing import x\nexcept ImportError:\n    from helper import x\n",
    "mine/other.py": "class Other: ...\n",
    "mine/deep/__init__.py": "",
    "mine/deep/late.py": "def f():\n    from mine.lazy import g\n",
    "mine/lazy.py": "def g(): ...\n",
    "mine/unused.py": "",
    "helper.py": "x = 1\n",
}


def names(*roots: str) -> set[str]:
    """Of the modules of "module" or "module:name", as a stage's code is followed."""
    parts = (root.partition(":") for root in roots)
    found = import_closure(tuple((module, name or None) for module, _, name in parts), without=BOOKKEEPING)
    return {module.name for module in found}


def test_imports_are_followed_through_packages_modules_and_functions(own_modules):
    own_modules(USER)
    expected = {"mine.pattern", "mine.scores", "helper", "mine.deep.late", "mine.lazy"}
    assert names("mine.pattern") == expected
    assert not {"mine", "helper"} & sys.modules.keys(), "nothing is imported to find out"


def test_a_package_that_re_exports_names_is_no_dependency_of_one_of_them(own_modules):
    own_modules(USER | {"user.py": "from mine import Other\n", "whole.py": "import mine\n"})
    assert names("user") == {"user", "mine.other"}
    assert names("mine:Other") == {"mine.other"}
    assert "mine.pattern" in names("whole") and "mine.other" in names("whole")


def test_a_relative_import_that_fails_at_runtime_is_passed_over(own_modules):
    own_modules(
        {"alone.py": "try:\n    from . import friend\nexcept ImportError:\n    import friend\n", "friend.py": ""}
    )
    assert names("alone") == {"alone", "friend"}


def test_an_editable_install_counts_by_source_and_an_installed_package_by_version(own_modules, tmp_path, monkeypatch):
    """The import hooks of an editable install give a place outside site-packages."""
    place = (
        own_modules({"hidden/src/edited/__init__.py": "", "hidden/src/edited/part.py": "import settled\n"})
        / "hidden"
        / "src"
    )
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
                name, place / "edited" / "__init__.py", submodule_search_locations=[str(place / "edited")]
            )

    monkeypatch.setattr(sys, "meta_path", [Finder, *sys.meta_path])
    assert not counts_by_version("edited") and counts_by_version("settled")
    assert names("edited.part") == {"edited.part"}
    assert names("settled") == {"settled", "settled.part"}, "a root is followed wherever it lies"


@pytest.mark.parametrize(
    ("file", "content", "counts"),
    [
        ("helper.py", "x = 2\n", True),
        ("helper.py", "x = 1  # of one\n", False),
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
def test_an_edit_counts_where_it_can_change_a_result(own_modules, file, content, counts):
    own_modules(USER)
    before = code_digest(import_closure((("mine", "Mine"),)))
    own_modules({file: content})
    assert (code_digest(import_closure((("mine", "Mine"),))) != before) is counts
