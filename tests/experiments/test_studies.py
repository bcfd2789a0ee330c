"""The studies: their points, the work of a call and what it leaves, their pages; and one of two points on digits."""

import shlex
import sys
from concurrent.futures import Future
from pathlib import Path

import pytest

from sparsefront.command_line import configured
from sparsefront.settings import build_settings
from sparsefront.validate import validate

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "experiments" / "studies"
NAMES = (
    "definition",
    "rows",
    "finish",
    "work",
    "cells",
    "blocks",
    "crossing",
    "study",
    "tables",
    "products",
    "panels",
    "draw",
    "page",
)
STUDIES = sorted(path.parent.name for path in FOLDER.parent.glob("*/study.yaml"))
ON_CPU = ("trainer=cpu", "measure.device=cpu")


@pytest.fixture
def study(modules):
    """Two columns, three lines, of which one is a headline in one column; on digits."""
    definition = modules["definition"]
    rows = {
        "EW": definition.Row(("pattern=element_wise",), paper=(90.5, None), headline=("50 %",)),
        "2:4": definition.Row(("pattern=n_m", "pattern.m=4")),
        "BW": definition.Row(("pattern=block_wise",), paper=(80,)),
    }
    columns = {"50 %": ("sparsity=0.5",), "75 %": ("sparsity=0.75",)}
    table = definition.Table("Patterns", columns, rows, paper="of a source")
    network = "vit_small_digits"
    bars = {network: {"50 %": 80.0}}
    return definition.Study("trial", "A trial", "About it.", (network,), (table,), headline_seeds=(0, 1), bars=bars)


def line_of(masked: float, **more: object) -> dict:
    return {
        "pattern": "element_wise",
        "metric_name": "accuracy",
        "sparsity_target": 0.5,
        "sparsity_achieved": 0.5,
        "val_dense": 0.9,
        "dense": 0.88,
        "dense_continued": 0.89,
        "val_masked": masked,
        "masked": masked,
        "recovery_steps": 3,
        "torch_version": "2",
        "dense_weights_sha256": "a",
        **more,
    }


def test_the_folders_hold_five_studies_and_the_rerun_of_complaints():
    assert STUDIES == ["nmsparse_bert", "pytorch_talk", "recoveries", "tile_wise_bert", "uniform"]
    assert (FOLDER.parent / "complaints" / "rerun.py").exists()


@pytest.mark.parametrize("name", STUDIES)
def test_a_study_is_whole(modules, name):
    """Its networks are known, its headlines are columns, and a source's numbers fit the columns."""
    definition = modules["definition"]
    study = definition.read_study(name)
    assert set(study.networks) <= definition.networks().keys()
    for table in study.tables:
        assert set(table.networks) <= set(study.networks)
        for row in table.rows.values():
            assert set(row.headline) <= table.columns.keys() and len(row.paper) <= len(table.columns)
            assert not row.paper or table.paper, "numbers without what they are of"
    points = list(definition.points(study))
    assert len(set(points)) == len(points) and any(point.turn == 0 for point in points)
    columns = {point.column for point in points}
    assert all(bars.keys() <= columns for bars in study.bars.values())


@pytest.mark.parametrize("name", STUDIES)
def test_the_settings_of_every_point_can_be_built(modules, name, tmp_path):
    definition = modules["definition"]
    study = definition.read_study(name)
    seen = set()
    for point in definition.points(study, seeds=[0]):
        key = (point.table, point.row) if point.network == study.networks[0] else point.network
        if key in seen:  # columns differ in the sparsity alone, and of further networks one point is enough
            continue
        seen.add(key)
        with configured([*point.overrides, "kernel=none", f"results_dir={tmp_path}"], ROOT / "conf") as (config, _):
            assert config.control == "dense_continued"
            for group in ("model", "dataset", "pattern", "importance", "allocation", "schedule", "recovery", "recipe"):
                build_settings(group, config[group])


def test_points_that_need_no_data_are_valid(modules, tmp_path):
    definition = modules["definition"]
    study = definition.read_study("pytorch_talk")
    for point in definition.points(study, of=["vit_small_digits"], seeds=[0]):
        more = [
            *ON_CPU,
            "kernel=none",
            "measure.latency=false",
            f"results_dir={tmp_path}",
            f"cache_dir={tmp_path}/cache",
        ]
        with configured([*point.overrides, *more], ROOT / "conf") as (config, _):
            assert not validate(config).swaps


def test_headlines_come_first_and_alone_have_further_seeds(modules, study):
    found = list(modules["definition"].points(study))
    assert len(found) == 6 + 1
    by_turn = sorted(found, key=lambda point: point.turn)
    assert [(point.row, point.column, point.seed) for point in by_turn][::6] == [("EW", "50 %", 0), ("EW", "50 %", 1)]
    assert [point.seed for point in modules["definition"].points(study, seeds=[1])] == [1]


def test_a_network_may_have_headlines_only(modules, study):
    from dataclasses import replace

    both = replace(study, networks=(*study.networks, "sst2"), headlines_only=("sst2",))
    found = [point for point in modules["definition"].points(both) if point.network == "sst2"]
    assert [(point.row, point.column, point.seed) for point in found] == [("EW", "50 %", 0), ("EW", "50 %", 1)]
    assert len(list(modules["definition"].points(both))) == 6 + 1 + 2


def test_recoveries_with_other_seeds_share_a_dense_network(modules, study):
    from dataclasses import replace

    definition = modules["definition"]
    one = replace(study, seed_key="recovery.seed")
    *_, last = definition.points(one)
    assert last.seed == 1 and "recovery.seed=1" in last.overrides
    assert definition.dense_point(one, last).seed == 0 and definition.dense_point(study, last).seed == 1


class Inline:
    """A pool that does everything at once."""

    def submit(self, task, *arguments):
        future = Future()
        try:
            future.set_result(task(*arguments))
        except RuntimeError as error:
            future.set_exception(error)
        return future


def queue_of(modules, study, tmp_path, **more):
    settings = {"kernels": ["none"], "shared": {study.networks[0]: []}, "out": tmp_path, "results": tmp_path / "runs"}
    return modules["work"].queue_of([study], list(modules["definition"].points(study)), **settings | more)


def test_a_study_goes_on_where_it_was_and_trains_dense_first(modules, study, tmp_path, monkeypatch):
    work, done = modules["work"], []

    def finish(overrides):
        done.append(overrides)
        return line_of(0.9)

    monkeypatch.setattr(work, "finish", finish)
    run = {"pool": Inline(), "out": tmp_path, "workers": 1, "say": lambda line: None}
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
    from dataclasses import replace

    monkeypatch.setattr(modules["work"], "finish", lambda overrides: line_of(0.9))
    run = {"pool": Inline(), "out": tmp_path, "workers": 1, "say": lambda line: None, "ends_at": float("inf")}
    modules["work"].run(queue_of(modules, study, tmp_path), **run)
    for change, left in (("trainer.deterministic=true", 0), ("dataset.group_by_length=true", 7 + 2)):
        changed = replace(study, overrides=(*study.overrides, change))
        assert len(queue_of(modules, changed, tmp_path).jobs) == left
        lines = modules["rows"].current_lines(changed, tmp_path / study.name / "points.csv")
        assert len(lines) == 7 + 2 - left


def lines_of(modules, study, tmp_path) -> list:
    return (tmp_path / study.name / "points.csv").read_text().splitlines()[1:]


def test_points_of_other_dense_weights_are_done_again_first_and_places_are_not_kept(
    modules, study, tmp_path, monkeypatch
):
    work, done = modules["work"], []
    run = {"pool": Inline(), "out": tmp_path, "workers": 1, "say": lambda line: None, "ends_at": float("inf")}
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
    definition, rows = modules["definition"], modules["rows"]
    for point in definition.points(study, seeds=[0]):
        value = {"EW": 0.8, "2:4": 0.9, "BW": 0.85}[point.row]
        rows.append_line(tmp_path / "points.csv", point, "none", line_of(value), overrides="")
    lines = rows.read_lines(tmp_path / "points.csv")
    found = list(modules["study"].further_seeds(study, lines, study.networks))
    assert [(point.row, point.column, point.seed) for point in found] == [("2:4", "50 %", 1), ("BW", "50 %", 1)]
    assert all("seed=1" in point.overrides and point.turn == 2 for point in found)
    assert not list(modules["study"].further_seeds(study, lines, []))


def test_without_its_dense_network_no_point_has_a_line(modules, study, tmp_path, monkeypatch):
    work, said = modules["work"], []
    run = {"pool": Inline(), "out": tmp_path, "workers": 1, "say": said.append, "ends_at": float("inf")}
    for failure in ({"unsupported": "model.path=x: no such folder"}, RuntimeError("broken")):

        def finish(overrides, failure=failure):
            if isinstance(failure, RuntimeError):
                raise failure
            return failure

        monkeypatch.setattr(work, "finish", finish)
        work.run(queue_of(modules, study, tmp_path), **run)
        assert not modules["rows"].read_lines(tmp_path / study.name / "points.csv")
    assert sum("need that network" in line for line in said) == 4
    assert any("no such folder" in line for line in said) and any("RuntimeError: broken" in line for line in said)


def filled(modules, study, tmp_path) -> Path:
    rows, definition = modules["rows"], modules["definition"]
    path = tmp_path / "points.csv"
    for point in definition.points(study):
        if point.row == "BW":
            found = {"unsupported": "no layer fits"} if point.column == "75 %" else None
        elif point.row == "EW":
            found = line_of(0.885 if point.column == "50 %" else 0.7 + point.seed / 10)
        else:
            found = line_of(0.8)
        if found is not None:
            rows.append_line(path, point, "none", found, overrides=shlex.join(point.overrides))
        if (point.row, point.column, point.seed) == ("EW", "50 %", 0):
            timed = line_of(0.885, speedup=0.8, speedup_low=0.7, speedup_high=0.9, gpu="H200", sparse=0.884)
            rows.append_line(path, point, "auto", timed, overrides=shlex.join(point.overrides))
            dense = definition.dense_point(study, point)
            rows.append_line(
                path, dense, "none", line_of(0.0, evaluated_samples=9), overrides=shlex.join(dense.overrides)
            )
    return path


def test_the_page_sets_ours_beside_the_source_and_names_what_is_missing(modules, study, tmp_path):
    filled(modules, study, tmp_path)
    text = modules["page"].page(study, tmp_path)
    lines = {tuple(cell.strip() for cell in line.split("|")[1:3]): line for line in text.splitlines() if "|" in line}
    ours = (
        "| 2 | 88.50 ± 0.00 | 88.50 ± 0.00 | 88.00 ± 0.00 | +0.50 | 89.00 ± 0.00 | -0.50 | 0.80 (0.70–0.90) | 90.50 |"
    )
    assert ours in lines["EW", "50 %"]
    assert "speedup auto" in text and "speedup sparse" not in text, "a column without anything is left out"
    assert "differs by at most 0.10 points (1 timed points)" in text and "Source: of a source." in text
    assert "missing" in lines["BW", "50 %"] and lines["BW", "50 %"].endswith("| 80 |")
    assert "unsupported: no layer fits" in lines["BW", "75 %"]
    assert "1 of 6; 1 are timed" in text, "cells without any line"
    assert "best on val is *EW*, 88.50 ± 0.00 on val, 88.50 ± 0.00 on test (2 seeds" in text
    assert "to reach 80: reached so far: of 2 seeds finalists have *EW* 2, *2:4* 1" in text
    assert (tmp_path / "accuracy.png").stat().st_size > 1000
    (tmp_path / "reading.md").write_text("What it says.")
    assert "## Reading\n\nWhat it says." in modules["page"].page(study, tmp_path)


def point_of(modules, study, row, seed):
    return next(
        point
        for point in modules["definition"].every_point(study)
        if (point.row, point.column, point.seed) == (row, "50 %", seed)
    )


@pytest.mark.parametrize(
    ("second", "chosen", "verdict"),
    [(None, "EW", "reached so far"), (0.9, "2:4", "reached\n"), (0.7, "EW", "reached\n"), (0.1, "EW", "reached\n")],
)
def test_a_bar_is_decided_by_all_seeds_of_its_finalists(modules, study, tmp_path, second, chosen, verdict):
    """Of lines of 82, 80 and 78 % of val with the first seed the first two are finalists."""
    path = tmp_path / "points.csv"
    of_first = {"EW": 0.82, "2:4": 0.8, "BW": 0.78}
    for seed, values in ((0, of_first), (1, {"EW": 0.82, "2:4": second, "BW": 0.99})):
        for row, value in values.items():
            point = point_of(modules, study, row, seed)
            if value is not None:
                modules["rows"].append_line(path, point, "none", line_of(value), overrides=shlex.join(point.overrides))
    text = modules["page"].page(study, tmp_path)
    assert f"best on val is *{chosen}*" in text and f"to reach 80: {verdict}" in text


def test_a_line_says_where_the_network_is_less_sparse_than_asked(modules, study, tmp_path):
    point = next(modules["definition"].points(study))
    modules["rows"].append_line(
        tmp_path / "points.csv",
        point,
        "none",
        line_of(0.8, sparsity_achieved=0.2),
        overrides=shlex.join(point.overrides),
    )
    assert "| EW | 50 % (has 20 %) | 1 |" in modules["page"].page(study, tmp_path)


def test_lines_of_several_dense_networks_are_said(modules, study, tmp_path):
    path = filled(modules, study, tmp_path)
    assert "compare within a block only" not in modules["page"].page(study, tmp_path)
    other = next(point for point in modules["definition"].points(study) if point.row == "2:4")
    modules["rows"].append_line(
        path, other, "none", line_of(0.8, dense_weights_sha256="b"), overrides=shlex.join(other.overrides)
    )
    text = modules["page"].page(study, tmp_path)
    assert "Lines of seed 0 are of 2 dense networks: compare within a block only" in text
    letters = {tuple(cell.strip() for cell in line.split("|")[1:4]) for line in text.splitlines() if "|" in line}
    assert {("EW", "50 %", "A"), ("2:4", "50 %", "B"), ("2:4", "75 %", "A"), ("BW", "50 %", "")} <= letters
    assert "A: a, seed 0, val 90.00, test 88.00; B: b, seed 0, val 90.00, test 88.00" in text


def test_retrainings_of_another_dense_network_are_of_another_block(modules, study, tmp_path):
    """Where seeds are those of recoveries, all share the dense network of the first seed."""
    from dataclasses import replace

    one = replace(study, seed_key="recovery.seed")
    for seed, digest in ((0, "a"), (1, "b")):
        point = point_of(modules, one, "EW", seed)
        found = line_of(0.8, dense_weights_sha256=digest)
        modules["rows"].append_line(
            tmp_path / "points.csv", point, "none", found, overrides=shlex.join(point.overrides)
        )
        dense = modules["definition"].dense_point(one, point)
        found = line_of(0.0, evaluated_samples=9)
        modules["rows"].append_line(
            tmp_path / "points.csv", dense, "none", found, overrides=shlex.join(dense.overrides)
        )
    assert "| EW | 50 % | A, B | 2 |" in modules["page"].page(one, tmp_path)


def test_each_line_has_the_control_that_its_difference_is_to(modules, study, tmp_path):
    """Two rates have two controls; of a seed that is not there the dense network does not count either."""
    for row, control in (("EW", 0.89), ("2:4", 0.91)):
        point = point_of(modules, study, row, 0)
        found = line_of(0.85, dense_continued=control)
        modules["rows"].append_line(
            tmp_path / "points.csv", point, "none", found, overrides=shlex.join(point.overrides)
        )
    text = modules["page"].page(study, tmp_path)
    assert "| dense | − dense | dense, trained on | − dense, trained on |" in text
    assert "| 88.00 | -3.00 | 89.00 | -4.00 |" in text and "| 88.00 | -3.00 | 91.00 | -6.00 |" in text


def test_dense_networks_of_several_seeds_are_told_together(modules, study, tmp_path):
    path = filled(modules, study, tmp_path)
    second = next(p for p in modules["definition"].points(study) if (p.row, p.column, p.seed) == ("EW", "50 %", 1))
    line = line_of(0.0, val_dense=0.91, dense=0.9, evaluated_samples=9)
    dense = modules["definition"].dense_point(study, second)
    modules["rows"].append_line(path, dense, "none", line, overrides=shlex.join(dense.overrides))
    assert "Dense (2 seeds): val 90.50 ± 0.71, test 89.00 ± 1.41 (accuracy)" in modules["page"].page(study, tmp_path)


def test_a_page_without_lines_shows_the_source_and_no_number_of_ours(modules, study, tmp_path):
    text = modules["page"].page(study, tmp_path)
    assert text.count("| missing |") == 6 and "| 90.50 |" in text and "no line yet" in text
    assert not (tmp_path / "accuracy.png").exists()


@pytest.fixture
def levels(modules):
    """Five levels of two lines, whose crossing is retrained; recoveries have the seeds."""
    definition = modules["definition"]
    columns = {f"{level} %": (f"sparsity={level / 100}",) for level in (10, 30, 50, 70, 90)}
    rows = {"uniform": definition.Row(("pattern=uniform",)), "EW": definition.Row(("pattern=element_wise",))}
    table = definition.Table("Levels", columns, rows, crossing=definition.Crossing(1.0, 3))
    more = {"headline_seeds": (0,), "seed_key": "recovery.seed"}
    return definition.Study("trial", "A trial", "About it.", ("vit_small_digits",), (table,), **more)


def lose(modules, study, tmp_path, lost: dict, *, row="uniform", seed=0, **more) -> None:
    """A line for each level, with so many points of val lost against dense; None: there is no such network."""
    for point in modules["definition"].every_point(study):
        if (point.row, point.seed) == (row, seed) and point.column in lost:
            level = float(point.column.split()[0]) / 100
            value = lost[point.column]
            found = {"unsupported": "no layer fits"}
            if value is not None:
                more |= {"sparsity_target": level, "sparsity_achieved": level, "val_masked": 0.9 - value / 100}
                found = line_of(0.88, **more)
            path = tmp_path / study.name / "points.csv"
            modules["rows"].append_line(path, point, "none", found, overrides=shlex.join(point.overrides))


def retrainings(modules, study, tmp_path) -> list:
    lines = modules["rows"].current_lines(study, tmp_path / study.name / "points.csv")
    cells = modules["cells"].cells_of(study, lines)
    found = list(modules["crossing"].retrainings(study, cells, study.networks))
    assert all(point.turn == 2 and f"recovery.seed={point.seed}" in point.overrides for point in found)
    return [(point.row, point.column, point.seed) for point in found]


FALLING = {"10 %": 0.0, "30 %": 0.2, "50 %": 0.5, "70 %": 2.5, "90 %": 9.0}


@pytest.mark.parametrize(
    ("change", "beside"),
    [
        ({}, ["50 %", "70 %"]),
        ({"10 %": 3.0}, ["10 %"]),
        ({"70 %": 0.6, "90 %": 0.9}, ["90 %"]),
        ({"50 %": None}, ["30 %", "70 %"]),
        (dict.fromkeys(FALLING), []),
    ],
)
def test_levels_beside_the_crossing_are_retrained(modules, levels, tmp_path, change, beside):
    """The first level at which more than a point is lost, and the one before it; levels that no network has are passed over."""
    lose(modules, levels, tmp_path, FALLING | change)
    assert retrainings(modules, levels, tmp_path) == [("uniform", level, seed) for level in beside for seed in (1, 2)]


def test_nothing_is_retrained_before_all_levels_of_a_line_are_there(modules, levels, tmp_path):
    from dataclasses import replace

    assert {point.seed for point in modules["definition"].points(levels)} == {0}
    lose(modules, levels, tmp_path, {name: FALLING[name] for name in list(FALLING)[1:]})
    lose(modules, levels, tmp_path, FALLING, row="EW")
    assert {row for row, _, _ in retrainings(modules, levels, tmp_path)} == {"EW"}
    table = levels.tables[0]
    elsewhere = replace(table, crossing=replace(table.crossing, networks=("sst2",)))
    assert not retrainings(modules, replace(levels, tables=(elsewhere,)), tmp_path)


def iso_of(modules, study, tmp_path) -> str:
    text = modules["page"].page(study, tmp_path / study.name)
    return next(line for line in text.splitlines() if line.startswith("- uniform"))


def test_the_page_interpolates_the_iso_accuracy_with_the_spread_of_the_retrainings(modules, levels, tmp_path):
    lose(modules, levels, tmp_path, {"50 %": 0.5, "70 %": 2.5})
    found = iso_of(modules, levels, tmp_path)
    levels_told = "levels 50 %, 70 %; no line yet of 10 %, 30 %, 90 %"
    assert found == f"- uniform: val 55.0 % (1 retraining), test above 70 % (1 retraining); {levels_told}"
    lose(modules, levels, tmp_path, FALLING)
    lose(modules, levels, tmp_path, {"50 %": 0.0, "70 %": 2.0}, seed=1)
    assert "val 57.5 ± 3.5 % (2 retrainings), test above 90 % (1 retraining); levels 10 %" in iso_of(
        modules, levels, tmp_path
    )
    lose(modules, levels, tmp_path, {"50 %": 0.5}, seed=2)
    assert "(2 retrainings)" in iso_of(modules, levels, tmp_path), "one of two levels says nothing of the spread"
    lose(modules, levels, tmp_path, {"50 %": 1.8, "70 %": 2.5}, seed=2)
    assert "val 51.7 ± 10.4 % (3 retrainings)" in iso_of(modules, levels, tmp_path), "crosses between 30 and 50 %"
    lose(modules, levels, tmp_path, {"50 %": 1.8}, seed=2, dense_weights_sha256="b")
    assert "(2 retrainings)" in iso_of(modules, levels, tmp_path), "another dense network"


def test_a_level_that_bounds_the_iso_accuracy_is_named(modules, levels, tmp_path):
    lose(modules, levels, tmp_path, FALLING | {"10 %": 1.5})
    assert "- uniform: val below 10 % (1 retraining), test above 90 %" in iso_of(modules, levels, tmp_path)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"points": 0, "retrainings": 3}, "points=0: must be above 0"),
        ({"points": 1.0, "retrainings": 0}, "retrainings=0: must be 1 or more"),
    ],
)
def test_a_crossing_that_means_nothing_is_refused(modules, settings, said):
    with pytest.raises(ValueError, match=said):
        modules["definition"].Crossing(**settings)


def test_a_crossing_needs_levels_and_seeds_of_recoveries(modules, levels):
    from dataclasses import replace

    with pytest.raises(ValueError, match="need seed_key: recovery.seed"):
        replace(levels, seed_key="seed")
    with pytest.raises(ValueError, match="its columns must set `sparsity` alone"):
        replace(levels.tables[0], columns={"50 %": ("sparsity=0.5", "pattern.m=4"), "75 %": ("sparsity=0.75",)})


def test_one_call_goes_on_with_the_retrainings(modules, levels, tmp_path, monkeypatch, capsys):
    """They follow from lines of the same call; headlines alone have none."""
    study, done = modules["study"], []

    def finish(overrides):
        done.append(overrides)
        level = next((float(text[9:]) for text in overrides if text.startswith("sparsity=")), 0.0)
        lost = FALLING.get(f"{100 * level:g} %", 0.0)
        return line_of(0.88, sparsity_target=level, sparsity_achieved=level, val_masked=0.9 - lost / 100)

    class Pool(Inline):
        def __enter__(self):
            return self

        def __exit__(self, *error):
            pass

    monkeypatch.setattr(modules["work"], "finish", finish)
    monkeypatch.setattr(study, "warm_up", lambda: None)
    monkeypatch.setattr(study, "worker_processes", lambda workers: Pool())
    monkeypatch.setattr(modules["definition"], "read_study", lambda name: levels)
    call = ["study.py", "uniform", "--networks", "vit_small_digits", "--out", str(tmp_path), "--results", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", [*call, "--headlines"])
    study.main()
    assert not done
    monkeypatch.setattr(sys, "argv", call)
    study.main()
    assert "11 points to do" in capsys.readouterr().out
    seeds = [next(text for text in overrides if text.startswith("recovery.seed=")) for overrides in done]
    assert seeds.count("recovery.seed=1") == seeds.count("recovery.seed=2") == 4, "two levels of two lines"
    done.clear()
    study.main()
    assert not done, "nothing is left"


def panel_of(modules, study, tmp_path):
    lines = modules["rows"].current_lines(study, tmp_path / "points.csv")
    return list(modules["panels"].panels(study, modules["cells"].cells_of(study, lines)))


def test_a_line_of_the_plot_joins_sparsities_of_one_pattern(modules, study, tmp_path):
    """A line of a table may be of one pattern at 50 % and of another at 75 %."""
    for point in modules["definition"].points(study, seeds=[0]):
        level = 0.5 if point.column == "50 %" else 0.75
        pattern = "n_m" if point.row == "2:4" and level == 0.5 else "element_wise"
        found = line_of(0.8, pattern=pattern, sparsity_target=level, sparsity_achieved=level)
        modules["rows"].append_line(
            tmp_path / "points.csv", point, "none", found, overrides=shlex.join(point.overrides)
        )
    (panel,) = panel_of(modules, study, tmp_path)
    assert panel.by_sparsity
    joined = {key: [modules["panels"].sparsity_of(cell) for cell in cells] for key, cells in panel.series().items()}
    assert joined["EW", "element_wise"] == [50, 75]
    assert joined["2:4", "n_m"] == [50] and joined["2:4", "element_wise"] == [75]


@pytest.mark.parametrize("name", STUDIES)
def test_plots_by_sparsity_are_of_levels_and_no_marker_stands_for_two_lines(modules, name):
    study = modules["definition"].read_study(name)
    found = panel_of(modules, study, FOLDER.parent / name)
    assert found
    for panel in found:
        shapes = modules["panels"].SHAPES
        assert len(set(shapes)) == len(shapes)
        if panel.by_sparsity:
            assert panel.table.levels and len(panel.columns) > 1 and len(panel.rows) <= len(shapes)
    if name == "recoveries":
        assert not any(panel.by_sparsity for panel in found), "its columns are patterns"


def test_every_mark_has_the_color_of_its_pattern_and_no_axis_is_narrow(modules, study, tmp_path, monkeypatch):
    from dataclasses import replace

    from matplotlib import pyplot
    from matplotlib.colors import to_hex

    from sparsefront.report.series_style import pattern_color

    columns = {"2:4": ("pattern=n_m", "sparsity=0.5"), "EW": ("pattern=element_wise", "sparsity=0.75")}
    rows = {"finetune": modules["definition"].Row(), "distill": modules["definition"].Row()}
    tables = (replace(study.tables[0], title="Recoveries", columns=columns, rows=rows), study.tables[0])
    both = replace(study, tables=tables, bars={})
    for point in modules["definition"].points(both, seeds=[0]):
        pattern = "n_m" if "2:4" in (point.column, point.row) else "element_wise"
        found = line_of(0.8, pattern=pattern, sparsity_achieved=0.5 + 1e-4 * (point.column == "75 %"))
        modules["rows"].append_line(
            tmp_path / "points.csv", point, "none", found, overrides=shlex.join(point.overrides)
        )
    drawn = []
    monkeypatch.setattr(pyplot, "close", drawn.append)
    modules["page"].page(both, tmp_path)
    monkeypatch.undo()
    (figure,) = drawn
    axes = {ax.get_title() or ax.get_xlabel(): ax for ax in figure.get_axes()}
    assert all(ax.get_xlim()[1] - ax.get_xlim()[0] >= 3 for ax in axes.values())
    for title, pattern in (("2:4", "n_m"), ("EW", "element_wise")):
        marks = {to_hex(line.get_color()) for line in axes[title].get_lines() if line.get_marker() == "o"}
        assert marks == {pattern_color(pattern)}
    assert [text.get_text() for text in axes["2:4"].get_yticklabels()] == ["finetune", "distill"]
    legend = {text.get_text(): line for text, line in zip(*legend_of(axes["sparsity, %"]))}
    assert to_hex(legend["2:4"].get_color()) == pattern_color("n_m")
    assert len({line.get_marker() for line in legend.values()}) == len(legend) == 3
    pyplot.close(figure)


def legend_of(axes) -> tuple[list, list]:
    legend = axes.get_legend()
    return legend.get_texts(), legend.get_lines()


@pytest.mark.parametrize("name", STUDIES)
def test_the_pages_are_those_of_the_lines(modules, name):
    folder = FOLDER.parent / name
    drawn = (folder / "accuracy.png").exists()
    text = modules["page"].text(modules["definition"].read_study(name), folder, drawn=drawn)
    assert (folder / "README.md").read_text() == text


def test_products_name_the_sparsity_from_which_they_gain(modules, tmp_path):
    head = "family,pattern,granularity,shape,sparsity,asked_sparsity,speedup,gpu,torch,commit"
    lines = [f"gathered,tile_wise,128,A,{s},{s},{gain},H200,2,c" for s, gain in ((0.5, 0.9), (0.75, 1.4), (0.75, 1.2))]
    (tmp_path / "products.csv").write_text("\n".join([head, *lines]) + "\n")
    found = list(modules["products"].product_lines(tmp_path))
    assert found[2] == "| A | tile_wise 128 | 0.90 | 1.40 | 75 % |"


def test_two_points_of_a_study_from_the_command_line(tmp_path, programs):
    command = [
        str(FOLDER / "study.py"),
        "pytorch_talk",
        "--networks",
        "vit_small_digits",
        "--seeds",
        "0",
    ]
    places = [f"--{name}={tmp_path / name}" for name in ("out", "results", "cache")]
    more = ["--only", "32 x 32", "--overrides", "debug=tiny", *ON_CPU, "model.dim=128", "model.depth=1"]
    call = programs.run([*command, *places, *more], cwd=ROOT)
    assert call.returncode == 0, call.stdout + call.stderr
    lines = (tmp_path / "out" / "pytorch_talk" / "points.csv").read_text().splitlines()
    assert len(lines) == 1 + 3, call.stdout
    assert len(list((tmp_path / "results" / "pytorch_talk").glob("*/row.json"))) == 3
    again = programs.run([*command, *places, *more], cwd=ROOT)
    assert again.stdout.splitlines()[-1] == "0 points to do"
