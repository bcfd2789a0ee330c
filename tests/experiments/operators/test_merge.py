"""Newer rows of the operator benchmark replace older ones of the same product, and nothing else."""

from sparsefront_kernels.bench.row import COLUMNS, read_rows, write_texts

from experiments.operators.draw import main
from experiments.operators.measurements import merged

ROW = dict.fromkeys(COLUMNS, "") | {
    "kernel": "blocked_sm90",
    "dtype": "fp16",
    "m": "256",
    "k": "64",
    "n": "64",
    "layout": "row_major",
    "sparsity": "0.751",
    "asked_sparsity": "0.75",
    "gpu": "NVIDIA H200",
    "latency_us": "3",
}


def latencies(rows):
    return [row["latency_us"] for row in rows]


def test_the_newest_row_of_a_product_stays_in_its_place():
    other, newer = ROW | {"m": "512", "latency_us": "4"}, ROW | {"sparsity": "0.749", "latency_us": "2"}
    assert latencies(merged([ROW, other], [newer])) == ["2", "4"]


def test_other_layouts_sparsities_and_gpus_are_other_rows():
    others = [{"layout": "feature_major"}, {"asked_sparsity": "0.5"}, {"gpu": "NVIDIA H100"}, {"kernel": "csr_sm90"}]
    later = [ROW | other | {"latency_us": "5"} for other in others]
    assert latencies(merged([ROW], later)) == ["3", *["5"] * 4]


def test_a_wrong_product_replaces_a_right_one():
    assert latencies(merged([ROW], [ROW | {"correct": "False", "latency_us": ""}])) == [""]


def test_files_are_merged_in_place_before_they_are_drawn(tmp_path, capsys):
    first, later = tmp_path / "h200.csv", tmp_path / "later.csv"
    write_texts(first, [ROW])
    write_texts(later, [ROW | {"latency_us": "1"}, ROW | {"m": "1"}])
    assert main([str(first), "--merge", str(later)]) == 1, "none of these rows is right"
    assert latencies(read_rows(first)) == ["1", "3"]
    assert "1 rows before, 2 measured since, 2 now" in capsys.readouterr().out
