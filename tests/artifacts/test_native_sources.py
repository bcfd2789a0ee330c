"""The digest of CUDA sources and tables: what can change a result changes it, comments and layout do not."""

import pytest
from sparsefront_kernels.cuda_library import SOURCES as BUILT

from sparsefront.artifacts.code_digest import (
    SOURCES,
    TABLES,
    import_closure,
    native_digest,
    native_sources,
    without_layout,
)

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


def test_a_directive_ends_with_its_line():
    assert without_layout("#define A 1\nint b;\n") != without_layout("#define A 1 int b;\n")


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


def test_beside_a_single_module_nothing_below_is_read(own_modules):
    own_modules({"alone.py": "", "alone.cu": "int a;\n", "data/far.cu": "int b;\n"})
    assert list(native_sources(import_closure((("alone", None),)))) == ["alone/alone.cu"]


def test_literals_stay_and_comments_go():
    code = without_layout(SOURCE)
    assert '"bar.sync 0; // in a string"' in code and 'R"(two\n    lines  // of text)"' in code
    assert "'a' + '\"' + '\\'';" in code
    assert not any(word in code for word in ("sums", "block", "end"))


def test_the_kernels_own_sources_are_found():
    """All that is built, the headers and the table of launches; not the measured latencies, which no result depends on."""
    modules = import_closure((("sparsefront_kernels.registry", None), ("sparsefront_kernels.norm", None)))
    found = native_sources(modules, (*SOURCES, *TABLES))
    assert set(BUILT.values()) <= set(found.values())
    assert {"sparsefront_kernels.gathered/csrc/mma_tiles.cuh", "sparsefront_kernels/cuda/hopper.cuh"} <= found.keys()
    assert "sparsefront_kernels.tuning/shipped/nvidia_h200.json" in found
    assert not any("measurements" in name for name in found)
