"""Which modules code is made of: all that it imports, of packages that do not count by version, and no others."""

import importlib.util
import sys
import sysconfig
from pathlib import Path

import pytest

from sparsefront.artifacts.code_digest import BOOKKEEPING, code_digest, counts_by_version, find_module, import_closure

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


def test_a_package_that_does_more_runs_with_each_of_its_modules(own_modules):
    own_modules(USER | {"mine/__init__.py": "from mine.other import Other\nOther.size = 3\n"})
    assert names("mine.lazy") == {"mine", "mine.other", "mine.lazy"}


def test_a_package_without_init_has_modules(own_modules):
    own_modules({"space/one.py": "from space import two\n", "space/two.py": "", "space/three.py": ""})
    assert names("space.one") == {"space.one", "space.two"}


def test_a_relative_import_that_fails_at_runtime_is_passed_over(own_modules):
    own_modules(
        {"alone.py": "try:\n    from . import friend\nexcept ImportError:\n    import friend\n", "friend.py": ""}
    )
    assert names("alone") == {"alone", "friend"}


def test_modules_that_import_each_other(own_modules):
    own_modules({"one.py": "import two\n", "two.py": "import one\n"})
    assert names("one") == {"one", "two"}


def test_what_is_left_out_is_not_followed(own_modules):
    own_modules(USER)
    found = import_closure((("mine.pattern", None),), without=("mine.deep", "helper"))
    assert {module.name for module in found} == {"mine.pattern", "mine.scores"}


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


def test_the_version_of_a_library_that_own_code_imports_counts(own_modules, tmp_path, monkeypatch):
    site = tmp_path / "lib" / "site-packages"
    (site / "settled-1.dist-info").mkdir(parents=True)
    (site / "settled.py").touch()
    monkeypatch.syspath_prepend(site)
    own_modules({"user.py": "import settled, torch, json\nfrom . import absent\n"})

    def digest_with(version: str) -> str:
        (site / "settled-1.dist-info" / "METADATA").write_text(f"Name: settled\nVersion: {version}\n")
        return code_digest(import_closure((("user", None),)))

    assert digest_with("1.0") == digest_with("1.0") != digest_with("1.1")


@pytest.mark.parametrize("library", ["torch", "numpy", "json", "sys", "no_such_module"])
def test_libraries_count_by_version(library):
    assert counts_by_version(library)
    assert Path(sysconfig.get_path("purelib")).name == "site-packages"


def test_the_same_code_elsewhere_has_the_same_digest(own_modules, tmp_path, monkeypatch):
    own_modules(USER)
    before = code_digest(import_closure((("mine.pattern", None),)))
    moved = tmp_path / "moved"
    (tmp_path / "own").rename(moved)
    monkeypatch.syspath_prepend(moved)
    (tmp_path / "own").mkdir()
    own_modules({})
    assert find_module("mine.pattern").file.is_relative_to(moved)
    assert code_digest(import_closure((("mine.pattern", None),))) == before


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


def test_closures_of_stages_stay_apart():
    """What a stage cannot reach changes none of its results."""
    dense = names("sparsefront.stages.dense", "sparsefront.models.vit_small", "sparsefront.data.digits")
    prune = names("sparsefront.stages.prune", "sparsefront.patterns.tile_wise")
    export = names("sparsefront.stages.export")
    assert {"sparsefront.training.fit", "sparsefront.models.attention", "sparsefront.tasks.base"} <= dense
    assert not any(name.startswith(("sparsefront.patterns", "sparsefront_kernels")) for name in dense)
    assert "sparsefront.patterns.tile_steps" in prune and "sparsefront.patterns.block_wise" not in prune
    assert "sparsefront_kernels.gathered.format" in export
    # masks without a search depend on no storage format, whose names are only checked, and on nothing that swaps kernels
    assert "sparsefront.pruning.prune" in prune and not any(name.startswith("sparsefront.inference") for name in prune)
    assert not any(name.startswith("sparsefront_kernels") and "format" in name.split(".")[2:] for name in prune)
    kernels = {name.rpartition(".")[2] for name in export if name.startswith("sparsefront_kernels.")}
    assert not kernels & {"op", "spmm", "triton_spmm", "entries", "registry", "cuda_library"}
