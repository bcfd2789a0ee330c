"""A point tells which of how many it is, and how long the rest takes, from points that did their work alone."""

import json

import pytest
from omegaconf import OmegaConf

from sparsefront.config.sweeps import (
    PROGRESS_FILE,
    Point,
    begin_sweep,
    count_points,
    headline,
    note_work,
    point_of_sweep,
    seconds_left,
)

BASIC = {"_target_": "hydra._internal.core_plugins.basic_sweeper.BasicSweeper"}


@pytest.mark.parametrize(
    ("sweeper", "overrides", "points"),
    [
        (BASIC, ["sparsity=0.5,0.75,0.9", "pattern=n_m,tile_wise", "seed=1"], 6),
        (BASIC, ["seed=range(4)", "sparsity=choice(0.5,0.75)", "measure.batch_size=[1,8]"], 8),
        (BASIC, ["seed=1,2", "seed=1,2,3"], 3),
        (BASIC | {"params": {"seed": "0,1", "sparsity": "0.5,0.75"}}, ["seed=1,2,3"], 6),
        ({"_target_": "hydra_plugins.hydra_optuna_sweeper.OptunaSweeper", "n_trials": 20}, ["seed=1,2"], 20),
        ({"_target_": "somebody.Sweeper"}, ["seed=1,2"], None),
        (BASIC, ["experiment=glob(distribution_*)", "seed=1,2"], None),
    ],
)
def test_points_are_counted_before_the_first(sweeper, overrides, points):
    assert count_points(OmegaConf.create({"hydra": {"sweeper": sweeper, "overrides": {"task": overrides}}})) == points


def in_turn(*points: tuple[float, bool, float]) -> tuple[list[Point], float]:
    """(seconds, made, shared seconds), one after the other; and the time at their end."""
    ended, now = [], 1000.0
    for seconds, made, shared in points:
        ended.append(Point(now, seconds, made, shared))
        now += seconds
    return ended, now


def test_points_that_were_finished_before_or_rejected_do_not_count():
    ended, now = in_turn((60, True, 0), (0.2, False, 0), (0.2, False, 0), (0.1, False, 0))
    assert seconds_left(3, ended, now=now) == pytest.approx(180)
    ended, now = in_turn((0.2, False, 0), (0.1, False, 0))
    assert seconds_left(3, ended, now=now) is None
    assert headline(5, ended, 2, now=now) == "point 3 of 5, time left: known when a first point is done"


def test_points_leave_their_time_in_the_sweep(tmp_path, caplog):
    caplog.set_level("INFO")
    begin_sweep(tmp_path, 4)
    with point_of_sweep(tmp_path, 0):
        note_work()
        note_work(shared_seconds=0.0)
    with pytest.raises(ValueError), point_of_sweep(tmp_path, 1):
        note_work()
        raise ValueError
    with (tmp_path / PROGRESS_FILE).open("a") as file:
        file.write('{"started": 1')  # of a killed point
    with point_of_sweep(tmp_path, 2):
        pass
    ended = [json.loads(line)["made"] for line in (tmp_path / PROGRESS_FILE).read_text().splitlines()[1:3]]
    assert ended == [True, False]
    assert [message.split(",")[0] for message in caplog.messages] == [f"point {number} of 4" for number in (1, 2, 3)]
    note_work()  # outside of a sweep: nothing


@pytest.mark.parametrize(
    "content", [b"\xff\n", b"[" * 100_000, b"7\n[]\n", b'{"points": "many"}\n{"started": "now"}\n', None]
)
def test_a_damaged_file_counts_nothing_and_stops_no_point(tmp_path, caplog, content):
    caplog.set_level("INFO")
    file = tmp_path / PROGRESS_FILE
    file.mkdir() if content is None else file.write_bytes(content)
    with point_of_sweep(tmp_path, 0):
        pass
    assert caplog.messages == ["point 1; how many there will be, the sweeper decides"]
