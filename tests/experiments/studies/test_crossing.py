"""Levels beside a crossing are retrained; the page interpolates between them."""

import shlex
import sys
from dataclasses import replace

import pytest
from inline_pool import InlinePool
from made_study import line_of

FALLING = {"10 %": 0.0, "30 %": 0.2, "50 %": 0.5, "70 %": 2.5, "90 %": 9.0}


def lose(modules, study, tmp_path, lost: dict, *, row="uniform", seed=0, **more) -> None:
    """A line for each level, with so many points of val lost against dense; None: there is no such network."""
    for point in modules["definition"].every_point(study):
        if (point.row, point.seed) == (row, seed) and point.column in lost:
            level = float(point.column.split()[0]) / 100
            value = lost[point.column]
            found = {"unsupported": "no layer fits"}
            if value is not None:
                more |= {
                    "dense_continued": 0.885,
                    "sparsity_target": level,
                    "sparsity_achieved": level,
                    "val_masked": 0.9 - value / 100,
                }
                found = line_of(0.88, **more)
            path = tmp_path / study.name / "points.csv"
            modules["cells"].append_line(path, point, "none", found, overrides=shlex.join(point.overrides))


def retrainings(modules, study, tmp_path) -> list:
    lines = modules["cells"].current_lines(study, tmp_path / study.name / "points.csv")
    cells = modules["cells"].cells_of(study, lines)
    found = list(modules["crossing"].retrainings(study, cells, study.networks))
    assert all(point.turn == 2 and f"recovery.seed={point.seed}" in point.overrides for point in found)
    return [(point.row, point.column, point.seed) for point in found]


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
    assert {point.seed for point in modules["definition"].points(levels)} == {0}
    lose(modules, levels, tmp_path, {name: FALLING[name] for name in list(FALLING)[1:]})
    lose(modules, levels, tmp_path, FALLING, row="EW")
    assert {row for row, _, _ in retrainings(modules, levels, tmp_path)} == {"EW"}
    table = levels.tables[0]
    elsewhere = replace(table, crossing=replace(table.crossing, networks=("sst2",)))
    assert not retrainings(modules, replace(levels, tables=(elsewhere,)), tmp_path)


def iso_of(modules, study, tmp_path) -> str:
    text = modules["page"].page(study, tmp_path / study.name)
    return next(line for line in text.split("Iso-accuracy")[1].splitlines() if line.startswith("| uniform"))


def test_the_page_interpolates_the_iso_accuracy_with_the_spread_of_the_retrainings(modules, levels, tmp_path):
    lose(modules, levels, tmp_path, {"50 %": 0.5, "70 %": 2.5})
    found = iso_of(modules, levels, tmp_path)
    dense = "55.0 % (1 retraining) | above 70 % (1 retraining)"
    continued = "60.0 % (1 retraining) | above 70 % (1 retraining)"  # 0.5 points below
    assert found == f"| uniform | {dense} | {continued} | 10 %, 30 %, 90 % |"
    lose(modules, levels, tmp_path, FALLING)
    lose(modules, levels, tmp_path, {"50 %": 0.0, "70 %": 2.0}, seed=1)
    assert "| uniform | 57.5 ± 3.5 % (2 retrainings) | above 90 % (1 retraining) |" in iso_of(modules, levels, tmp_path)
    lose(modules, levels, tmp_path, {"50 %": 0.5}, seed=2)
    assert "(2 retrainings)" in iso_of(modules, levels, tmp_path), "one of two levels says nothing of the spread"
    lose(modules, levels, tmp_path, {"50 %": 1.8, "70 %": 2.5}, seed=2)
    assert "| uniform | 51.7 ± 10.4 % (3 retrainings) |" in iso_of(modules, levels, tmp_path), (
        "crosses between 30 and 50 %"
    )
    lose(modules, levels, tmp_path, {"50 %": 1.8}, seed=2, dense_weights_sha256="b")
    assert "(2 retrainings)" in iso_of(modules, levels, tmp_path), "another dense network"


def test_a_level_that_bounds_the_iso_accuracy_is_named(modules, levels, tmp_path):
    lose(modules, levels, tmp_path, FALLING | {"10 %": 1.5})
    assert "| uniform | below 10 % (1 retraining) | above 90 %" in iso_of(modules, levels, tmp_path)


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

    class Pool(InlinePool):
        def __enter__(self):
            return self

        def __exit__(self, *error):
            pass

    monkeypatch.setattr(modules["study"], "finish", finish)
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
