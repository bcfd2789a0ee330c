"""What all experiments share: pages, rows and numbers."""

import pytest

from experiments.harness import page, rows
from experiments.harness.measure import Kernel, covered_us, microseconds_by_kernel

MARKS = "<!-- begin -->", "<!-- end -->"


def test_page_takes_its_tables_again(tmp_path):
    file = tmp_path / "README.md"
    file.write_text(f"before\n{MARKS[0]}\nold\n{MARKS[1]}\nafter\n")
    for text in ("new\n", "newer"):
        page.fill(file, MARKS, text)
    assert file.read_text() == f"before\n{MARKS[0]}\n\nnewer\n\n{MARKS[1]}\nafter\n"


def test_page_without_marks_stays(tmp_path):
    file = tmp_path / "README.md"
    file.write_text("no marks")
    with pytest.raises(ValueError, match="README.md has no marks '<!-- begin -->' and"):
        page.fill(file, MARKS, "new")
    assert file.read_text() == "no marks"


def test_tables_and_numbers():
    assert page.table(["a", "b"], [[1, "x"], ["", 2]]) == ["| a | b |", "|---|---|", "| 1 | x |", "|  | 2 |"]
    assert page.table(["a"], [], rule=" --- |") == ["| a |", "| --- |"]
    assert page.spread([]) == "" and page.spread([1.0]) == "1.00" and page.spread([1.0, 3.0]) == "2.00 ± 1.41"
    assert page.geometric_mean([2.0, 32.0], [3, 1]) == pytest.approx(4.0)
    timed = {"speedup": "1.5", "speedup_low": "1.4", "speedup_high": "1.6"}
    assert page.speedup(timed) == "1.50 (1.40–1.60)" and page.number(timed, "dense") is None


def test_missing_rows_until_time_is_over(tmp_path):
    out, cells = tmp_path / "rows.csv", [{"m": 1}, {"m": 2}, {"m": 3}]
    rows.measure_missing(out, cells[:1], lambda m: {"us": 5.0})
    rows.measure_missing(out, cells[:2], lambda m: {"us": m / 3})
    rows.measure_missing(out, cells, lambda m: {"us": 0.0}, ends_at=0.0)
    assert out.read_text() == "m,us\n1,5\n2,0.666667\n"
    assert rows.values_of({"m": 1, "compile": None}, ("m", "compile", "absent")) == ("1", "", "")


def test_rows_are_written_with_their_columns(tmp_path):
    rows.write(tmp_path / "rows.csv", ["a", "b"], [{"a": rows.text(1 / 3), "b": rows.text(None)}, {"a": rows.text(7)}])
    assert (tmp_path / "rows.csv").read_bytes() == b"a,b\n0.333333,\n7,\n"


def test_overlapping_kernels_count_once():
    """A kernel that begins under another is charged from its end; one that ends before it, nothing."""
    kernels = [Kernel("b", 1.0, 3.0), Kernel("a", 0.0, 2.0), Kernel("c", 1.5, 2.5), Kernel("a", 5.0, 6.0)]
    assert microseconds_by_kernel(kernels) == {"a": 3.0, "b": 1.0, "c": 0.0}
    assert covered_us(kernels) == 4.0
