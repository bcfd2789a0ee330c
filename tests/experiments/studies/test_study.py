"""The work of a call and what it leaves for the next; and two points on digits."""

from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace

import pytest
from inline_pool import InlinePool
from made_study import ON_CPU, ROOT, line_of, lines_of, queue_of


def test_a_study_goes_on_where_it_was_and_trains_dense_first(modules, study, tmp_path, monkeypatch):
    work, done = modules["study"], []

    def finish(overrides):
        done.append(overrides)
        return line_of(0.9)

    monkeypatch.setattr(work, "finish", finish)
    run = {"pool": InlinePool(), "out": tmp_path, "workers": 1, "say": lambda line: None}
    work.run(queue_of(modules, study, tmp_path), ends_at=float("-inf"), **run)
    assert not done, "out of time"
    work.run(queue_of(modules, study, tmp_path), ends_at=float("inf"), **run)
    assert len(done) == 7 + 2, "each seed has a dense network"
    dense = ["pattern=dense" in overrides for overrides in done]
    assert dense[:3] == [True, False, False] and "pattern=element_wise" in done[1]
    assert all("measure.latency=false" in overrides for overrides in done)
    assert not queue_of(modules, study, tmp_path).jobs, "nothing is left"
    timed = queue_of(modules, study, tmp_path, kernels=["auto", "sparse"])
    assert len(timed.jobs) == 2 * 7 + 2 and len(timed.needs) == 7, (
        "where nothing is stored dense networks are trained first"
    )
    assert all(("kernel=none" in overrides) == (key[0].row == "dense") for key, overrides in timed.jobs.items())
    work.run(timed, ends_at=float("inf"), **run)
    assert len(lines_of(modules, study, tmp_path)) == 7 * 3 + 2, "the same dense network has no second line"


def test_lines_of_other_settings_do_not_count(modules, study, tmp_path, monkeypatch):
    monkeypatch.setattr(modules["study"], "finish", lambda overrides: line_of(0.9))
    run = {"pool": InlinePool(), "out": tmp_path, "workers": 1, "say": lambda line: None, "ends_at": float("inf")}
    modules["study"].run(queue_of(modules, study, tmp_path), **run)
    for change, left in (("trainer.deterministic=true", 0), ("dataset.group_by_length=true", 7 + 2)):
        changed = replace(study, overrides=(*study.overrides, change))
        assert len(queue_of(modules, changed, tmp_path).jobs) == left
        lines = modules["cells"].current_lines(changed, tmp_path / study.name / "points.csv")
        assert len(lines) == 7 + 2 - left


def test_lines_of_a_setting_that_the_study_dropped_do_not_count(modules, study, tmp_path, monkeypatch):
    """Until the study has it again: then they count, though lines without it were added since."""
    rows = modules["cells"]
    run = {"pool": InlinePool(), "out": tmp_path, "workers": 1, "say": lambda line: None, "ends_at": float("inf")}
    larger = replace(study, overrides=("recipe.epochs=9",))
    for version, accuracy in ((larger, 0.9), (study, 0.8)):
        monkeypatch.setattr(modules["study"], "finish", lambda overrides, accuracy=accuracy: line_of(accuracy))
        queue = queue_of(modules, version, tmp_path)
        assert len(queue.jobs) == 7 + 2
        modules["study"].run(queue, **run)
    for version, accuracy in ((study, 0.8), (larger, 0.9)):
        assert not queue_of(modules, version, tmp_path).jobs
        lines = rows.current_lines(version, tmp_path / study.name / rows.FILE)
        assert {rows.number(line, "masked") for line in lines.values()} == {accuracy}


def test_points_of_other_dense_weights_are_done_again_first_and_places_are_not_kept(
    modules, study, tmp_path, monkeypatch
):
    work, done = modules["study"], []
    run = {"pool": InlinePool(), "out": tmp_path, "workers": 1, "say": lambda line: None, "ends_at": float("inf")}
    shared = {study.networks[0]: ["dataset.path=/home/me", "cache_dir=x"]}
    monkeypatch.setattr(work, "finish", lambda overrides: done.append(overrides) or line_of(0.9))
    queue = queue_of(modules, study, tmp_path, shared=shared)
    queue.jobs = dict(list(queue.jobs.items())[:3])
    work.run(queue, **run)
    assert "dataset.path=/home/me" in done[0] and not any(
        "/home/me" in line for line in lines_of(modules, study, tmp_path)
    )
    names = [key[0] for key in queue_of(modules, study, tmp_path, one_block=True).jobs]
    for digest, repeated in (("a", 0), ("b", 2)):
        done.clear()

        def other(overrides, digest=digest):
            done.append(overrides)
            return line_of(0.9, dense_weights_sha256=digest)

        monkeypatch.setattr(work, "finish", other)
        work.run(queue_of(modules, study, tmp_path, one_block=True), **run)
        if digest == "a":
            assert len(done) == len(names) == 2 + 5, "two have lines of the same dense network"
        else:
            assert len(done) == 2 + 7 and "pattern=element_wise" in done[1], repeated


def test_the_best_on_val_get_further_seeds(modules, study, tmp_path):
    definition, rows = modules["definition"], modules["cells"]
    for point in definition.points(study, seeds=[0]):
        value = {"EW": 0.8, "2:4": 0.9, "BW": 0.85}[point.row]
        rows.append_line(tmp_path / "points.csv", point, "none", line_of(value), overrides="")
    lines = rows.read_lines(tmp_path / "points.csv")
    found = list(modules["study"].further_seeds(study, lines, study.networks))
    assert [(point.row, point.column, point.seed) for point in found] == [("2:4", "50 %", 1), ("BW", "50 %", 1)]
    assert all("seed=1" in point.overrides and point.turn == 2 for point in found)
    assert not list(modules["study"].further_seeds(study, lines, []))


def test_without_its_dense_network_no_point_has_a_line(modules, study, tmp_path, monkeypatch):
    work, said = modules["study"], []
    run = {"pool": InlinePool(), "out": tmp_path, "workers": 1, "say": said.append, "ends_at": float("inf")}
    for failure in ({"unsupported": "model.path=x: no such folder"}, RuntimeError("broken")):

        def finish(overrides, failure=failure):
            if isinstance(failure, RuntimeError):
                raise failure
            return failure

        monkeypatch.setattr(work, "finish", finish)
        work.run(queue_of(modules, study, tmp_path), **run)
        assert not modules["cells"].read_lines(tmp_path / study.name / "points.csv")
    assert sum("need that network" in line for line in said) == 4
    assert any("no such folder" in line for line in said) and any("RuntimeError: broken" in line for line in said)


def test_a_killed_process_names_the_points_that_are_left(modules, study, tmp_path, monkeypatch):
    """What ended in the same moment still gets its line."""
    work = modules["study"]
    results = iter([line_of(0.9), BrokenProcessPool("killed")])

    def finish(overrides):
        if isinstance(found := next(results), Exception):
            raise found
        return found

    monkeypatch.setattr(work, "finish", finish)
    run = {"pool": InlinePool(), "out": tmp_path, "workers": 2, "ends_at": float("inf"), "say": lambda line: None}
    left = f"{study.name} {study.networks[0]}: dense, seed 1, kernel=none"
    with pytest.raises(SystemExit, match=f"was killed.*is left for the next call: {left}$"):
        work.run(queue_of(modules, study, tmp_path), **run)
    assert len(lines_of(modules, study, tmp_path)) == 1


def test_two_points_of_a_study_from_the_command_line(tmp_path, programs):
    command = [
        "-m",
        "experiments.studies.study",
        "pytorch_talk",
        "--networks",
        "vit_small_digits",
        "--seeds",
        "0",
    ]
    places = [f"--{name}={tmp_path / name}" for name in ("out", "results", "cache")]
    more = [
        "--workers",
        "1",
        "--only",
        "32 x 32",
        "--overrides",
        "debug=tiny",
        *ON_CPU,
        "model.dim=128",
        "model.depth=1",
    ]
    call = programs.run([*command, *places, *more], cwd=ROOT)
    assert call.returncode == 0, call.stdout + call.stderr
    lines = (tmp_path / "out" / "pytorch_talk" / "points.csv").read_text().splitlines()
    assert len(lines) == 1 + 3, call.stdout
    assert len(list((tmp_path / "results" / "pytorch_talk").glob("*/row.json"))) == 3
    again = programs.run([*command, *places, *more], cwd=ROOT)
    assert again.stdout.splitlines()[-1] == "0 points to do"
