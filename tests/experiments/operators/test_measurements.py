"""Reading the benchmark's CSV, what it refuses, names of masks."""

import re

import pytest
from sparsefront_kernels.bench.rows import COLUMNS, read_rows, write_texts

from experiments.operators.measurements import fastest, read_measurements


def test_read_back_as_written(measured, results_file):
    right = [measured(), measured(kernel="gathered_triton", sparsity=0.75, latency_us=40.0)]
    results = read_measurements(results_file(right, wrong=[measured(k=2048)]))
    assert results.measurements == right
    assert results.left_out == 1


@pytest.mark.parametrize(
    ("mark", "separator", "encoding"),
    [("\ufeff", ",", "utf-8"), ("", ";", "utf-8"), ("\ufeff", "\t", "utf-8"), ("", "\t", "utf-16")],
)
def test_what_a_spreadsheet_saved_is_read(tmp_path, mark, separator, encoding):
    file, row = tmp_path / "rows.csv", dict.fromkeys(COLUMNS, "x")
    text = f"{mark}{separator.join(row)}\r\n{separator.join(row.values())}\r\n"
    file.write_bytes(text.encode(encoding))
    assert read_rows(file) == [row]


def test_text_in_another_encoding_is_named(tmp_path):
    file = tmp_path / "rows.csv"
    file.write_bytes(",".join(COLUMNS).encode() + b"\n\xe9\n")
    with pytest.raises(ValueError, match="is no text in UTF-8"):
        read_rows(file)


def test_file_keeps_unwritten_columns(tmp_path):
    file = tmp_path / "rows.csv"
    write_texts(file, [dict.fromkeys(COLUMNS, "x")])
    before = file.read_bytes()
    with pytest.raises(ValueError, match="would lose the columns note"):
        write_texts(file, [dict.fromkeys([*COLUMNS, "note"], "x")])
    assert file.read_bytes() == before


def test_fastest_kernel_of_each_problem(measured):
    slow, fast = measured(kernel="slow", latency_us=60.0), measured(kernel="fast", latency_us=50.0)
    close = measured(kernel="close", latency_us=40.0, sparsity=0.5001)
    elsewhere = [measured(layout="row_major"), measured(sparsity=0.75), measured(m=1), measured(dtype="bf16")]
    assert fastest([slow, fast, *elsewhere]) == [fast, *elsewhere]
    assert fastest([slow, close]) == [close], "masks of one sparsity differ by less than a thousandth"


def test_no_rows(results_file, measured):
    with pytest.raises(ValueError, match="rows.csv has no row"):
        read_measurements(results_file([]))
    with pytest.raises(ValueError, match="no right product: none of its 2 rows"):
        read_measurements(results_file([], wrong=[measured(), measured()]))


def test_missing_columns_are_named(results_file, measured):
    path = results_file([measured()])
    path.write_text(re.sub("dense_us|roofline_fraction", "other", path.read_text()))
    with pytest.raises(ValueError, match="lacks the columns dense_us, roofline_fraction"):
        read_measurements(path)
    path.write_text("")
    with pytest.raises(ValueError, match="lacks the columns family, kernel"):
        read_measurements(path)


@pytest.mark.parametrize(
    ("column", "value", "allowed"),
    [
        ("dense_us", "fast", "above 0"),
        ("latency_us", "0", "above 0"),
        ("m", "1.5", "above 0"),
        ("sparsity", "nan", "of at least 0"),
        ("dtype", "fp8", "one of fp16, bf16, fp32, tf32"),
    ],
)
def test_bad_values_name_their_line(results_file, measured, column, value, allowed):
    path = results_file([measured(), measured()])
    header, first, second = path.read_text().splitlines()
    cells = dict(zip(header.split(","), second.split(","), strict=True)) | {column: value}
    path.write_text("\n".join([header, first, ",".join(cells.values())]))
    with pytest.raises(ValueError, match=rf"line 3: {column}='{value}' is .*{allowed}"):
        read_measurements(path)
