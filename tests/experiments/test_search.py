"""The study of experiments/search: its points compose, its lines are kept, its table pairs the search with single patterns."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from sparsefront.config.validate import validate
from sparsefront.patterns.mixed import Mixed
from sparsefront.patterns.n_m import NM
from sparsefront.patterns.tile_wise import TileWise
from sparsefront.results.store import append_line, read_lines
from sparsefront.tasks.outcomes import Outcomes

FOLDER = Path(__file__).resolve().parents[2] / "experiments" / "search"


def row(choice: str, level: str, seed: int, latency: float, accuracy: float, **cells: str) -> dict[str, str]:
    measured = {"latency_sparse_ms": latency, "latency_predicted_ms": latency * 1.04, "sparse": accuracy}
    measured |= {
        "val_sparse": accuracy,
        "latency_dense_ms": 2.0,
        "dense": 0.95,
        "dense_continued": 0.96,
        "prune_seconds": 60.0,
        "speedup": 2.0 / latency,
        "speedup_low": 2.0 / latency - 0.1,
        "speedup_high": 2.0 / latency + 0.1,
    }
    named = {"choice": choice, "level": level, "seed": str(seed), "metric_name": "accuracy"}
    return named | {name: str(value) for name, value in measured.items()} | cells


def test_points_are_runs(modules, composed):
    study = modules["study"]
    search = validate(composed(*study.Point("search", 2.0, 1).overrides(["n_m", "tile_wise:32"], 0.95)))
    assert search.pattern == Mixed(["n_m", "tile_wise:32"]) and search.allocation.speedup == 2.0
    assert (search.sparsity, search.seed, search.control) == (0.95, 1, "dense_continued")
    single = validate(composed(*study.Point("tile_wise:32", 0.75, 0).overrides([], 0.95)))
    assert single.pattern == TileWise(32) and single.sparsity == 0.75
    assert validate(composed(*study.Point("n_m", 0.5, 0).overrides([], 0.95))).pattern == NM()


def test_a_study_goes_on_behind_its_last_line(modules, tmp_path):
    study = modules["study"]
    wanted = study.wanted(["n_m"], [0.5, 0.75], [2.0], [0, 1])
    assert [point.seed for point in wanted] == [0, 0, 0, 1, 1, 1]
    out = tmp_path / "rows.csv"
    append_line(out, row("n_m", "0.5", 0, 1.0, 0.9))
    append_line(out, row("search", "2", 0, 1.0, 0.9))
    left = study.unfinished(wanted, read_lines(out))
    assert left == [wanted[2], *wanted[3:]]


def test_a_study_goes_on_in_a_file_of_its_own_settings_alone(modules, tmp_path):
    study = modules["study"]
    record, out = SimpleNamespace(value_of={"dense_weights_sha256": "a"}.get), tmp_path / "rows.csv"

    def given(*overrides, candidates=None, ceiling=0.95):
        singles = ["n_m", "tile_wise:32"]
        return SimpleNamespace(overrides=overrides, candidates=candidates, singles=singles, ceiling=ceiling)

    ours = given("recipe.lr=1e-4", "experiment=bert_sst2", "dataset.path=/here")
    settings = {
        choice: study.settings_of(choice, ours.singles, ours.ceiling, ours.overrides) for choice in ("n_m", "search")
    }
    single = study.line_of(study.Point("n_m", 0.5, 0), record, settings["n_m"])
    search = study.line_of(study.Point("search", 2.0, 0), record, settings["search"])
    assert single["overrides"] == "experiment=bert_sst2 recipe.lr=1e-4"
    study.require_same_settings(out, [], ours)
    again = given("experiment=bert_sst2", "recipe.lr=1e-4", "dataset.path=/there", candidates=["tile_wise:32", "n_m"])
    study.require_same_settings(out, [single, search], again)
    with pytest.raises(SystemExit, match="rows.csv: its lines are of experiment=bert_sst2 .*name another"):
        study.require_same_settings(out, [single], given(*ours.overrides[1:]))
    with pytest.raises(SystemExit, match="do not say with which --overrides they were measured"):
        study.require_same_settings(out, [row("n_m", "0.5", 0, 1.0, 0.9)], ours)
    others = given(*ours.overrides, candidates=["n_m"]), given(*ours.overrides, ceiling=0.9)
    for other, theirs in zip(others, ("candidates=.n_m,tile_wise:32", "sparsity=0.95")):
        study.require_same_settings(out, [single], other)
        with pytest.raises(SystemExit, match=f"those of searches are of .*{theirs}.*, not of "):
            study.require_same_settings(out, [single, search], other)


def test_the_dense_network_comes_first_and_searches_take_the_times_of_one(modules, monkeypatch, tmp_path, capsys):
    study = modules["study"]
    ended = []

    def run_point(point, *, candidates, ceiling, overrides, until):
        assert (candidates, ceiling, overrides, until) == (["n_m"], 0.9, ["sparsity=0.5"], None)
        ended.append(point)
        if point == study.Point("search", 3.0, 0):
            return "allocation.speedup=3.0: out of reach"
        if point == study.Point("n_m", 0.5, 0):
            raise RuntimeError("no room left")
        return row(point.choice, f"{point.level:g}", point.seed, 1.0, 0.9) if point.seed < 2 else None

    monkeypatch.setattr(study, "run_point", run_point)
    todo = study.wanted(["n_m"], [0.5], [2.0, 3.0], [0, 1]) + [study.Point("n_m", 0.5, 2)]
    given = SimpleNamespace(candidates=["n_m"], singles=[], ceiling=0.9, overrides=["sparsity=0.5"], workers=4)
    given.until, given.out = None, tmp_path / "rows.csv"
    with ThreadPoolExecutor(4) as pool:
        left = study.finish(todo, pool, given)
    for seed in (0, 1):
        of_seed = [(point.choice, point.level) for point in ended if point.seed == seed]
        assert of_seed[0] == ("dense", 0.0) and of_seed.index(("search", 2.0)) < of_seed.index(("search", 3.0))
    assert left == [study.Point("n_m", 0.5, 0)]
    lines = read_lines(given.out)
    assert {(line["choice"], line["seed"]) for line in lines} == {
        ("search", "0"),
        ("search", "1"),
        ("n_m", "1"),
    }  # no third seed
    told = capsys.readouterr().out
    assert "RuntimeError: no room left" in told and "seed=0) is left out: allocation.speedup=3.0: out of reach" in told


def test_a_point_on_digits(modules, tmp_path):
    study = modules["study"]
    overrides = ["debug=tiny", "kernel=reference", f"cache_dir={tmp_path}/cache", f"results_dir={tmp_path}/results"]
    given = {"candidates": ["n_m"], "ceiling": 0.9, "overrides": overrides}
    assert study.run_point(study.Point("dense", 0.0, 0), **given) is None
    assert study.run_point(study.Point("n_m", 0.5, 0), until="export", **given) is None
    assert not (tmp_path / "results" / "rows.csv").exists()  # it ended before it was measured
    line = study.run_point(study.Point("n_m", 0.5, 0), **given)
    assert (line["choice"], line["metric_name"]) == ("n_m", "accuracy") and float(line["sparse"]) > 0
    assert "sparse 0." in study.told(line) or "sparse 1" in study.told(line)
    refused = study.run_point(study.Point("block_wise:1000", 0.5, 0), **given)
    assert isinstance(refused, str) and "1000" in refused


def test_the_search_stands_beside_the_best_single_pattern_that_is_as_fast(modules):
    rows = [row("search", "2", seed, 1.0, 0.94) for seed in (0, 1)]
    rows += [row("n_m", "0.75", seed, 1.01, 0.90 + 0.02 * seed) for seed in (0, 1)]
    rows += [row("n_m", "0.5", 0, 1.5, 0.95), row("tile_wise:64", "0.9", 0, 0.8, 0.85)]
    (line,) = modules["summary"].table(rows)[2:]
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert cells[:5] == ["2", "2", "2.00 (1.90–2.10)", "+4.0%", "94.00%"]
    assert cells[5:10] == ["n_m at 0.75", "1.98", "91.00%", "+3.00", "–"]
    wide = [row | {"val_dense_continued": "0.95"} for row in rows]
    everything = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in modules["summary"].all_choices(wide)[2:]
    ]
    assert [cells[0] for cells in everything] == ["tile_wise:64", "search", "n_m", "n_m"]
    speedup = "1.98 (1.88–2.08)"
    assert everything[2] == ["n_m", "0.75", "2", "1.010", speedup, "91.00 % ± 1.41", "-4.00", "91.00 % ± 1.41", "-5.00"]
    assert cells[10:] == ["96.00%", "60%", "60"]  # (4 + 2) of the 6 + 4 points that the single pattern loses


def test_seeds_without_the_control_are_left_out_of_what_is_against_it(modules):
    rows = [row("n_m", "0.5", 0, 1.0, 0.94, val_dense_continued="0.95"), row("n_m", "0.5", 1, 1.0, 0.90)]
    rows[1] |= {"dense_continued": "", "val_dense_continued": ""}
    cells = [cell.strip() for cell in modules["summary"].all_choices(rows)[2].strip("|").split("|")]
    assert cells[5:] == ["92.00 % ± 2.83", "-1.00", "92.00 % ± 2.83", "-2.00"]
    cells = [cell.strip() for cell in modules["summary"].all_choices(rows[1:])[2].strip("|").split("|")]
    assert (cells[6], cells[8]) == ("–", "–")


def test_a_point_of_a_tree_without_commits_has_a_line(modules):
    record = SimpleNamespace(value_of={"dense_weights_sha256": "a" * 64, "sparse": 0.9}.get)
    line = modules["study"].line_of(modules["study"].Point("n_m", 0.5, 0), record, [])
    assert (line["commit"], line["sparse"]) == ("", "0.9") and set(line["dense_weights_sha256"]) == {"a"}


def test_a_single_pattern_at_just_the_speed_of_the_search(modules):
    """By straight lines between its sparsities; the best one by held-out data; of rows of another machine by speedup."""
    searched = row("search", "1.6", 0, 1.25, 0.94)  # 1.6 times as fast as dense
    rows = [row("n_m", level, 0, 2 / speedup, value) for level, speedup, value in (("0.5", 1.2, 0.9), ("0.75", 2, 0.8))]
    assert modules["summary"].single_at_speed(searched, rows) == ("n_m", pytest.approx(0.85))
    assert modules["summary"].single_at_speed(searched, rows[:1]) is None
    better = [
        row("uniform", "0.5", 0, 2.0, 0.8, val_sparse="0.99"),
        row("uniform", "0.75", 0, 1.0, 0.8, val_sparse="0.99"),
    ]
    assert modules["summary"].single_at_speed(searched, rows + better) == ("uniform", pytest.approx(0.8))
    same = [row("uniform", level, 0, 1.25, value, speedup="1.6") for level, value in (("0.5", 0.95), ("0.75", 0.7))]
    assert modules["summary"].single_at_speed(searched, rows + same) == ("uniform", 0.95)
    slower_machine = row("n_m", "0.75", 0, 2.5, 0.8, speedup="1.7")
    assert modules["summary"].best_single(searched, [*rows[:1], slower_machine]) == slower_machine


def test_the_gain_is_paired_over_samples_and_seeds(modules):
    rows = [row("search", "2", seed, 1.0, 0.9, run_id=f"ours{seed}") for seed in (0, 1)]
    rows += [row("n_m", "0.75", seed, 1.0, 0.8, run_id=f"theirs{seed}") for seed in (0, 1)]
    rows.append(row("search", "3", 0, 0.5, 0.7, run_id="alone"))  # nothing is as fast
    rows.append(row("search", "1.5", 0, 1.2, 0.9, run_id="kept"))  # its single pattern's outcomes are not
    right = {f"ours{seed}": [1] * 9 + [0] for seed in (0, 1)} | {f"theirs{seed}": [0] * 2 + [1] * 8 for seed in (0, 1)}

    def outcomes_of(run_id):
        if run_id not in right:
            return None
        return Outcomes("accuracy", np.array(right[run_id], dtype=np.uint8), None, "the same")

    (line,) = found = modules["summary"].pairs(rows, outcomes_of)
    assert (line["level"], line["seeds"]) == ("2", "2") and float(line["difference"]) == pytest.approx(0.1)
    low, high = float(line["low"]), float(line["high"])
    assert -0.35 <= low < 0.1 < high <= 0.55  # it loses the last sample and gains the first two
    (without, searched, _) = modules["summary"].table(rows, found)[2:]
    assert "| +10.00 |" in without, "no interval where outcomes are not kept"
    assert f"| +10.00 ({100 * low:+.2f} to {100 * high:+.2f}) |" in searched


@pytest.mark.parametrize(
    ("later", "told"),
    [
        ([("search", "2", 1, 1.0, 0.9), ("n_m", "0.75", 1, 1.0, 0.8)], r"\+10.00 over 2"),
        ([("tile_wise:128", "0.75", 0, 1.0, 0.85)], r"\+5.00 over 1"),
    ],
    ids=["another seed", "a better single pattern"],
)
def test_an_interval_of_other_rows_is_rejected(modules, later, told):
    rows = [row("search", "2", 0, 1.0, 0.9), row("n_m", "0.75", 0, 1.0, 0.8)]
    pair = {"level": "2", "seeds": "1", "difference": "0.1", "low": "0.05", "high": "0.15"}
    assert "| +10.00 (+5.00 to +15.00) |" in modules["summary"].table(rows, [pair])[-1]
    with pytest.raises(
        ValueError, match=rf"of \+10.00 points over 1 seeds, while the rows have {told}: run it with --pairs"
    ):
        modules["summary"].table([*rows, *(row(*cells) for cells in later)], [pair])


@pytest.mark.parametrize("name", ["minilm", "minilm_h100"])
def test_the_page_holds_the_tables_of_its_lines(modules, name):
    lines, page = read_lines(FOLDER / f"{name}.csv"), (FOLDER / "README.md").read_text()
    pairs = read_lines(modules["summary"].pairs_file(FOLDER / f"{name}.csv"))
    for table in (modules["summary"].all_choices(lines), modules["summary"].table(lines, pairs)):
        assert f"-->\n{chr(10).join(table)}\n<!--" in page


@pytest.mark.parametrize(("name", "batch"), [("search_minilm", 256), ("front_squad", 32), ("front_sst2", 128)])
def test_presets_of_the_fronts(composed, name, batch):
    config = composed(f"experiment={name}")
    assert (config.measure.batch_size, config.measure.sequence_length) == (batch, 128)


def test_fronts(modules, tmp_path):
    draw = modules["draw"]
    tested = ((2.0, 0.7, 0.9), (1.0, 0.8, 0.8), (3.0, 0.99, 0.85), (4.0, 0.6, 0.95))
    places = [draw.Place(latency, accuracy, 0.0, held_out) for latency, accuracy, held_out in tested]
    assert [place.latency for place in draw.front(places)] == [1.0, 2.0, 4.0], "the most accurate on test is not on it"
    rows = [row("search", "2", 0, 1.0, 0.94), row("search", "2", 1, 3.0, 0.96), row("n_m", "0.5", 0, 1.5, 0.9)]
    rows[2]["sparse_standard_error"] = "0.03"
    error = pytest.approx(0.02 / 2**0.5)  # over the seeds; of the samples where there is one seed
    mean = pytest.approx(0.95)
    assert draw.series(rows) == {"search": [(2.0, mean, error, mean)], "n_m": [(1.5, 0.9, 0.03, 0.9)]}
    dense = [{"seed": seed, "dense": value} for seed, value in (("0", "0.9"), ("0", "0.9"), ("1", "0.8"), ("1", ""))]
    assert draw.over_seeds(dense, "dense") == pytest.approx(0.85) and draw.over_seeds(dense, "dense_continued") is None
    draw.draw(rows, tmp_path / "fronts.png")
    assert (tmp_path / "fronts.png").stat().st_size > 0
