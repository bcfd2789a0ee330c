"""The digest of CUDA sources and tables: what can change a result changes it, comments do not."""

import importlib.util
from pathlib import Path

import pytest

from sparsefront.artifacts.kernel_sources import folder_digest, kernel_sources_digest, without_comments

SOURCE = """#include "work.cuh"
// sums of a tile
__global__ void add(float* y) {  /* one
   block */
  asm volatile("bar.sync 0; // in a string");
  y[1'000] += 'a' + '"' + '\\''; // end
}
"""


@pytest.fixture
def package(tmp_path):
    """A folder with one source, one header and one table."""
    (tmp_path / "cuda").mkdir()
    (tmp_path / "tuned").mkdir()
    (tmp_path / "cuda" / "add.cu").write_text(SOURCE)
    (tmp_path / "cuda" / "work.cuh").write_text("constexpr int kWidth = 64;\n")
    (tmp_path / "tuned" / "gpu.json").write_text('{"block_m": 128}\n')
    return tmp_path


CHANGES = [
    ("cuda/add.cu", "+=", "-="),
    ("cuda/add.cu", "// in a string", "// in another string"),
    ("cuda/work.cuh", "64", "32"),
    ("tuned/gpu.json", "128", "256"),
]


@pytest.mark.parametrize(("name", "old", "new"), CHANGES)
def test_what_can_change_a_result_counts(package, name, old, new):
    before = folder_digest(package)
    text = (package / name).read_text()
    assert old in text
    (package / name).write_text(text.replace(old, new))
    assert folder_digest(package) != before


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("// sums of a tile\n", "// sums of a tile,\n\n// by one block\n"),
        ("// sums of a tile\n", ""),
        ("// end", "// the end of 'it"),
        ("  /* one\n   block */", ""),
    ],
)
def test_comments_do_not_count(package, old, new):
    before = folder_digest(package)
    source = package / "cuda" / "add.cu"
    assert old in source.read_text()
    source.write_text(source.read_text().replace(old, new))
    assert folder_digest(package) == before


def test_a_renamed_and_a_new_source_count(package):
    found = {folder_digest(package)}
    (package / "cuda" / "add.cu").rename(package / "cuda" / "sum.cu")
    found.add(folder_digest(package))
    (package / "cuda" / "new.cuh").write_text("")
    found.add(folder_digest(package))
    assert len(found) == 3


def test_literals_stay_and_comments_go():
    code = without_comments(SOURCE)
    assert '"bar.sync 0; // in a string"' in code
    assert "'a' + '\"' + '\\'';" in code
    assert not any(word in code for word in ("sums", "block", "end"))


def test_the_kernels_own_sources_are_found():
    (folder,) = importlib.util.find_spec("sparsefront_kernels").submodule_search_locations
    suffixes = {path.suffix for path in Path(folder).rglob("*")}
    assert {".cu", ".cuh", ".json"} <= suffixes
    assert kernel_sources_digest("sparsefront_kernels") == folder_digest(Path(folder))


def test_a_package_that_is_not_there():
    with pytest.raises(ModuleNotFoundError, match="no_such_package"):
        kernel_sources_digest("no_such_package")
