"""Points lost are against the dense network that was trained as long, where there is one; tables show both."""

import io

import pytest
from rich.console import Console

from sparsefront.results.candidates import baseline_quality, points_lost
from sparsefront.results.comparable import split_comparable
from sparsefront.results.page.comparison import write_comparison
from sparsefront.results.plots import write_pareto_png
from sparsefront.results.store import rank, rank_of_line
from sparsefront.results.tables import results_table, run_table

CONTINUED = {"dense": 0.95, "dense_continued": 0.98, "masked": 0.96, "sparse": 0.955}


def text(table) -> str:
    console = Console(file=io.StringIO(), width=300)
    console.print(table)
    return console.file.getvalue()


def test_the_continued_network_is_the_baseline_where_there_is_one(make_result):
    assert points_lost(make_result(**CONTINUED)) == pytest.approx(2.5)
    assert points_lost(make_result(**CONTINUED | {"dense_continued": None})) == pytest.approx(-0.5)
    assert points_lost(make_result(**CONTINUED | {"sparse": None})) == pytest.approx(2.0)
    assert points_lost(make_result(sparse=None, masked=None)) is None
    assert points_lost(make_result(dense=None)) is None and baseline_quality(make_result(dense=None)) is None


def test_tables_show_both_baselines_and_what_the_loss_is_against(make_result):
    one = text(run_table(make_result(**CONTINUED, recovery_steps=40, recovery_epochs=2.0, recovery_samples=320)))
    for told in (
        "dense, trained on",
        "95.00 %",
        "98.00 %",
        "2.50, against dense, trained on",
        "40 steps, 2 epochs, 320 samples",
    ):
        assert told in one
    alone = text(run_table(make_result()))
    assert "trained on" not in alone and "1.00, against dense" in alone
    held_out = {"val_dense": 0.95, "val_sparse": 0.9, "val_evaluated_samples": 144, "evaluated_samples": 359}
    assert "sparse 90.00 % of 144 samples, for choices" in text(run_table(make_result(**held_out)))
    seen = text(run_table(make_result(**held_out, val_seen=True)))
    assert "144 samples, for no choice: the checkpoint may have seen them" in seen
    several = text(results_table([make_result(**CONTINUED), make_result(dense=0.95)]))
    for told in ("95.00 %", "98.00 %", "2.50", "-2.00"):
        assert told in several


def test_plots_show_both_and_the_better_one_bounds_the_front(make_result, tmp_path):
    results = [make_result(**CONTINUED), make_result(**CONTINUED | {"speedup": 0.9, "sparse": 0.97, "granularity": 64})]
    (group,) = split_comparable(results)
    assert group.dense_point() == (1.0, 95.0) and group.continued_point() == (1.0, 98.0)
    assert group.front() == [(1.5, 95.5), (1.0, 98.0)]
    page = write_comparison(results, tmp_path / "page.html", title="both").read_text()
    assert '{"name":"dense_continued","constant":0.98}' in page
    assert write_pareto_png(results, tmp_path / "plot.png").stat().st_size > 0
    assert split_comparable([make_result()])[0].continued_point() is None


def test_the_control_with_the_teacher_comes_first(make_result):
    both = make_result(**CONTINUED, dense_distilled=0.985)
    assert points_lost(both) == pytest.approx(3.0) and baseline_quality(both) == 0.985
    told = text(run_table(both))
    assert "dense, trained on with the teacher" in told and "3.00, against dense, trained on with the teacher" in told
    (group,) = split_comparable([both, make_result(**CONTINUED, seed=1), make_result(seed=2)])
    (note,) = (note for note in group.notes() if note.startswith("points lost"))
    assert note == (
        "points lost are against dense trained on with the teacher in 1 run, and against dense trained on in 1 run, and "
        "against dense as it was before pruning in the 1 without control=dense_continued"
    )
    assert group.distilled_point() == (1.0, pytest.approx(98.5)) and '"dense_distilled"' in text_of_page(both)


def text_of_page(result) -> str:
    import tempfile
    from pathlib import Path

    with tempfile.TemporaryDirectory() as folder:
        return write_comparison([result], Path(folder) / "page.html", title="one").read_text()


def test_of_one_run_with_either_control_that_with_the_teacher_counts(make_result):
    continued, distilled = make_result(dense_continued=0.9), make_result(dense_distilled=0.9)
    assert rank(distilled) > rank(continued) > rank(make_result())
    for result in (continued, distilled):
        line = {name: "" if value is None else str(value) for name, value in result.flat().items()}
        assert rank_of_line(line)[0] == rank(result)[0]
