"""Rows that do not belong in one plot are kept apart; untimed rows stay out of the latency plot."""

from sparsefront.report.comparable import CPU_NOTE, split_comparable


def test_another_model_data_device_batch_or_dtype_is_another_group(make_row):
    rows = [
        make_row(),
        make_row(seed=4),
        make_row(model="bert"),
        make_row(dataset_task="sst2"),
        make_row(latency_device="cuda", gpu="A"),
        make_row(latency_device="cuda", gpu="B"),
        make_row(batch_size=1),
        make_row(sequence_length=128),
        make_row(dtype="fp16"),
        make_row(metric_name="f1"),
    ]
    groups = split_comparable(rows)
    assert sorted(len(group.rows) for group in groups) == [1] * 8 + [2]


def test_only_timed_rows_stand_against_latency(make_row):
    (group,) = split_comparable([make_row(), make_row(latency_sparse_ms=None, kernel=None, masked=0.5)])
    assert [point.quality for point in group.points()] == [97.0, 50.0]
    assert [point.latency_ms for point in group.timed_points()] == [3.5]


def test_dense_is_the_median_twin_and_part_of_the_front(make_row):
    rows = [make_row(latency_dense_ms=ms, dense=0.98, run_id=str(ms)) for ms in (5.0, 6.0, 50.0)]
    (group,) = split_comparable(rows)
    assert group.dense_point() == (6.0, 98.0)
    assert group.front() == [(3.5, 97.0), (6.0, 98.0)]


def test_rows_that_measured_nothing_draw_nothing(make_row):
    nothing = dict.fromkeys(("dense", "masked", "kernel", "latency_dense_ms", "latency_sparse_ms", "latency_device"))
    (group,) = split_comparable([make_row(**nothing)])
    assert group.points() == [] and group.dense_point() is None and group.front() == []
    assert "not timed" in group.title


def test_a_cpu_latency_says_so_on_its_axis(make_row):
    cpu, gpu = make_row(), make_row(latency_device="cuda", gpu="H200")
    assert CPU_NOTE in split_comparable([cpu])[0].latency_label
    assert "CPU" not in split_comparable([gpu])[0].latency_label
