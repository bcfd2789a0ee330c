"""Reading the benchmark's CSV: what it gives, and what it refuses."""

import re

import pytest

from experiments.operators.measurements import Weight, fastest, m_class, read_measurements


def test_read_back_as_written(measured, results_file):
    right = [measured(), measured(kernel="gathered_triton", sparsity=0.75, latency_us=40.0)]
    results = read_measurements(results_file(right, wrong=[measured(k=2048)]))
    assert results.measurements == right
    assert results.left_out == 1
    assert results.provenance["gpu"] == "Some GPU" and results.provenance["commit"] == "abc"


def test_useful_work_and_bytes(measured):
    one = measured(m=2, k=8, n=4, sparsity=0.75)
    assert one.useful_flops == 2 * 2 * 8 * 4 * 0.25
    assert one.bytes_moved == 2 * (8 + 2 * 8 + 2 * 4)
    assert measured(m=2, k=8, n=4, sparsity=0.75, dtype="tf32").bytes_moved == 2 * one.bytes_moved


def test_what_newer_files_tell(measured, results_file):
    rows = [measured(asked_sparsity=0.0, predicted_us=45.0), measured(k=2048)]
    assert read_measurements(results_file(rows)).measurements == rows


def test_many_sizes_are_few_classes():
    assert [m_class(m).label for m in (1, 2, 64, 65, 1024, 4096, 50432)] == [
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
        ("roofline_fraction", "", "above 0"),
        ("sparsity", "nan", "of at least 0"),
        ("dtype", "fp8", "one of fp16, bf16, fp32, tf32"),
    ],
)
def test_bad_values_are_named_with_their_line(results_file, measured, column, value, allowed):
    path = results_file([measured(), measured()])
    header, first, second = path.read_text().splitlines()
    cells = dict(zip(header.split(","), second.split(","), strict=True)) | {column: value}
    path.write_text("\n".join([header, first, ",".join(cells.values())]))
    with pytest.raises(ValueError, match=rf"line 3: {column}='{value}' is .*{allowed}"):
        read_measurements(path)
