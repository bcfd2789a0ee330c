"""Reading the benchmark's CSV, what it refuses, names of masks."""

import re

import pytest
from sparsefront_kernels.bench.rows import COLUMNS, read_rows, write_texts

from experiments.operators.measurements import Weight, distribution_names, fastest, m_class, read_measurements


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


def test_what_newer_files_tell(measured, results_file):
    rows = [measured(asked_sparsity=0.0, predicted_us=45.0), measured(k=2048)]
    assert read_measurements(results_file(rows)).measurements == rows


def test_many_sizes_are_few_classes():
    assert [m_class(m) for m in (1, 2, 64, 65, 1024, 4096, 50432)] == [
        "M = 1",
        "M = 2 to 64",
        "M = 2 to 64",
        "M = 65 to 512",
        "M = 513 to 2048",
        "M = 2049 to 8192",
        "M > 8192",
    ]


def test_labels(dense_weight):
    assert Weight("blocked", "block_wise", 64, "equal").label == "blocked 64, equal"
    assert Weight("csr", "element_wise", 1, "").label == "csr 1"
    assert dense_weight.label == "dense"


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


def masks(distribution, pattern, settings=""):
    return {"distribution": distribution, "pattern": pattern, "mask_settings": settings}


def test_patterns_differ_by_their_settings():
    rows = [
        masks("equal", "vector_wise"),
        masks("pattern", "vector_wise", "m=null seed=0"),
        masks("pattern", "tile_wise", "whole_tiles=true seed=0"),
        masks("pattern", "tile_wise", "whole_tiles=false seed=0"),
        masks("", "dense"),
    ]
    assert list(distribution_names([*rows, *rows]).values()) == [
        "equal",
        "vector_wise",
        "tile_wise whole_tiles=true",
        "tile_wise whole_tiles=false",
        "",
    ]


def test_measurements_of_two_patterns_stay_apart(results_file, measured):
    path = results_file([measured(), measured(kernel="other")])
    header, first, second = path.read_text().splitlines()
    names = header.split(",")

    def changed(line, **values):
        return ",".join((dict(zip(names, line.split(","), strict=True)) | values).values())

    tile = changed(first, distribution="pattern", pattern="tile_wise", mask_settings="seed=0")
    vector = changed(second, distribution="pattern", mask_settings="m=null seed=0")
    path.write_text("\n".join([header, first, tile, vector]) + "\n")
    found = [one.weight.distribution for one in read_measurements(path).measurements]
    assert found == ["equal", "tile_wise", "vector_wise"]
