"""The studies: their points, the work of a call and what it leaves, their pages; and one of two points on digits."""

import shlex
import subprocess
import sys
from concurrent.futures import Future
from pathlib import Path

import pytest

from sparsefront.command_line import configured
from sparsefront.settings import build_settings
from sparsefront.validate import validate

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "experiments" / "studies"
NAMES = ("definition", "rows", "finish", "work", "study", "cells", "tables", "products", "draw", "page")
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
    table = definition.Table("Patterns", columns, rows, paper="of a source", iso_accuracy=True)
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
    assert "| 2 | 88.50 ± 0.00 | 88.50 ± 0.00 | +0.50 | -0.50 | 0.80 (0.70–0.90) |  | 90.50 |" in lines["EW", "50 %"]
    assert "differs by at most 0.10 points (1 timed points)" in text and "Source: of a source." in text
    assert "missing" in lines["BW", "50 %"] and lines["BW", "50 %"].endswith("| 80 |")
    assert "unsupported: no layer fits" in lines["BW", "75 %"]
    assert "1 of 6; 1 are timed" in text, "cells without any line"
    assert "best on val is *EW*, 88.50 ± 0.00 on val, 88.50 ± 0.00 on test (2 seeds" in text
    assert "to reach 80: reached so far: of 2 seeds finalists have *EW* 2, *2:4* 1" in text
    assert "- EW: val none, test 50 %" in text, "1.5 points lost on val, half a point gained on test"
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
    assert "2 dense networks with one seed: compare within a block only" in modules["page"].page(study, tmp_path)


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


def test_two_points_of_a_study_from_the_command_line(tmp_path):
    command = [
        sys.executable,
        str(FOLDER / "study.py"),
        "pytorch_talk",
        "--networks",
        "vit_small_digits",
        "--seeds",
        "0",
    ]
    places = [f"--{name}={tmp_path / name}" for name in ("out", "results", "cache")]
    more = ["--only", "32 x 32", "--overrides", "debug=tiny", *ON_CPU, "model.dim=128", "model.depth=1"]
    call = subprocess.run([*command, *places, *more], capture_output=True, text=True, cwd=ROOT)
    assert call.returncode == 0, call.stdout + call.stderr
    lines = (tmp_path / "out" / "pytorch_talk" / "points.csv").read_text().splitlines()
    assert len(lines) == 1 + 3, call.stdout
    assert len(list((tmp_path / "results" / "pytorch_talk").glob("*/row.json"))) == 3
    again = subprocess.run([*command, *places, *more], capture_output=True, text=True, cwd=ROOT)
    assert again.stdout.splitlines()[-1] == "0 points to do"
