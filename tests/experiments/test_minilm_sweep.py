"""The sweep of experiments/sweeps/minilm.py: its points, how it goes on, and what it says of its time."""

import time
from pathlib import Path

import pytest
from inline_pool import InlinePool

from sparsefront.results.store import append_line, read_lines

FOLDER = Path(__file__).resolve().parents[2] / "experiments" / "sweeps"


@pytest.fixture
def finished(modules, monkeypatch) -> list:
    """The points that were run, each of which takes no time."""
    minilm = modules["minilm"]
    run = []

    def finish(point, overrides):
        run.append(point)
        if point == minilm.Point("n_m", 0.9, 0):
            raise RuntimeError("no room left")
        now = time.monotonic()
        spans = [("training", now, now + 2.0), ("timing", now + 1.0, now + 3.0), ("waiting", now + 3.0, now + 3.5)]
        dense = point.pattern == "dense"
        return minilm.Cost(spans, now, now + 4.0, dense, None, None, None, "cpu", "2", None)

    monkeypatch.setattr(minilm, "finish", finish)
    return run


def sweep(modules, out, **given):
    minilm = modules["minilm"]
    given = {"workers": 3, "ends_at": time.monotonic() + 60} | given
    return minilm.run(list(minilm.all_points([0])), InlinePool(), out, [], **given)


def test_twelve_points_of_every_pattern_that_run_py_takes(modules, composed):
    minilm = modules["minilm"]
    dense, *pruned = minilm.all_points([0, 1])
    assert dense.pattern == "dense" and len(pruned) == 25 and sum(point.pattern == "dense" for point in pruned) == 1
    for point in pruned[:12]:
        config = composed(*point.overrides)
        assert config.sparsity == point.sparsity and config.seed == 0 and config.dataset.task == "sst2"


def test_dense_comes_first_and_what_failed_is_tried_again(modules, finished, tmp_path, capsys):
    minilm = modules["minilm"]
    out = tmp_path / "minilm.csv"
    call = sweep(modules, out)
    assert finished[0].pattern == "dense" and len(finished) == 13
    assert (call["points"], call["failed"], call["dense_trainings"]) == (12, 1, 1)
    assert "RuntimeError: no room left" in capsys.readouterr().out
    assert read_lines(out.with_suffix(".calls.csv"))[0]["share_training_or_timing"] == str(
        call["share_training_or_timing"]
    )
    sweep(modules, out)
    assert len(finished) == 14 and finished[-1] == minilm.Point("n_m", 0.9, 0)
    told = "\n".join(minilm.summary(out))
    assert "11 of 12 points, seeds 0" in told and "dense trainings: 1 for 1 seeds" in told


def test_nothing_begins_after_the_time(modules, finished, tmp_path, capsys):
    call = sweep(modules, tmp_path / "minilm.csv", ends_at=0.0)
    assert finished == [] and call["points"] == 0
    assert "out of time: 13 points are left for the next call" in capsys.readouterr().out


def test_a_line_splits_the_time_of_its_point(modules, finished):
    minilm = modules["minilm"]
    point = minilm.Point("n_m", 0.5, 0)
    cost = minilm.finish(point, [])
    line = minilm.line_of(point, cost, "now", cost.began - 1.0)
    split = {name: line[f"{name}_s"] for name in (*minilm.SECONDS, "other", "total")}
    assert split == pytest.approx(
        {"training": 2, "pruning": 0, "evaluation": 0, "timing": 2, "waiting": 0.5, "other": -0.5, "total": 4}
    )
    assert (line["began_s"], line["ended_s"]) == (1.0, 5.0)


def test_a_killed_call_has_its_shares_up_to_its_last_point(modules, finished, tmp_path, monkeypatch):
    minilm = modules["minilm"]
    out, run = tmp_path / "minilm.csv", minilm.finish

    def finish(point, overrides):
        if len(finished) == 3:
            raise SystemExit(143)
        return run(point, overrides)

    monkeypatch.setattr(minilm, "finish", finish)
    with pytest.raises(SystemExit):
        sweep(modules, out, workers=1)
    (call,) = read_lines(out.with_suffix(".calls.csv"))
    assert call["points"] == "3" and float(call["share_training_or_timing"]) > 0
    lines = read_lines(out)
    assert minilm.spans_of(lines[0])[1][0] == "timing" and "waiting" not in lines[0]["spans"]
    told = {"workers": 3, "wall_s": 8.0, "failed": 0}
    assert minilm.call_line(lines[:1], lines[0]["call"], **told)["share_training_or_timing"] == pytest.approx(
        3 / 8, abs=2e-3
    )


def test_lines_without_spans_have_no_share(modules, finished, tmp_path):
    minilm = modules["minilm"]
    out = tmp_path / "minilm.csv"
    line = {
        **minilm.line_of(minilm.Point("n_m", 0.5, 0), minilm.finish(minilm.Point("n_m", 0.5, 0), []), "a", 0.0),
        "spans": "",
    }
    append_line(out, line)
    call = minilm.call_line(read_lines(out), "a", workers=1, wall_s=4.0, failed=0)
    assert call["share_training_or_timing"] == "" == call["share_any_work"]
    append_line(out.with_suffix(".calls.csv"), call)
    assert "shares not recorded" in "\n".join(minilm.summary(out))


def test_spans_that_follow_at_once_are_one(modules):
    minilm = modules["minilm"]
    spans = [("training", 10.0, 12.0), ("timing", 14.0, 15.0), ("training", 12.05, 13.0), ("training", 13.5, 14.0)]
    assert minilm._spans_text(spans, 10.0) == '{"training":[[0.0,3.0],[3.5,4.0]],"timing":[[4.0,5.0]]}'


def test_a_point_on_digits_is_accounted_for(modules, tmp_path):
    minilm = modules["minilm"]
    places = [f"cache_dir={tmp_path / 'cache'}", f"results_dir={tmp_path / 'results'}"]

    class Digits(minilm.Point):
        overrides = ["debug=tiny", "pattern=n_m", *minilm.runs.QUIET]

    cost = minilm.finish(Digits("n_m", 0.75, 0), places)
    assert cost.dense_trained and cost.speedup is not None and cost.val_sparse is not None
    seconds = {what: cost.seconds(what) for what in minilm.SECONDS}
    assert min(seconds["training"], seconds["evaluation"], seconds["timing"], seconds["pruning"]) > 0
    assert sum(seconds.values()) <= cost.ended - cost.began
    again = minilm.finish(Digits("n_m", 0.75, 0), places)
    assert not again.dense_trained and again.seconds("training") == 0 and again.speedup == cost.speedup
