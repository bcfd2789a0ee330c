"""Where a result comes from: its command, its machine and software, and the cells of a study that are missing."""

import shlex
from pathlib import Path

import pytest
import yaml

from sparsefront.__main__ import compare as main
from sparsefront.results.candidates import candidates_of, provenance, unlike_the_rest
from sparsefront.results.columns import measured_cells
from sparsefront.results.mask_pictures import GROUP_COLOR, KEPT_COLOR, PRUNED_COLOR, WINDOW_COLOR
from sparsefront.results.plots import pattern_color, recovery_marker, series_styles
from sparsefront.results.run_folder import override_text, run_command
from sparsefront.results.store import write_result_json

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    "overrides",
    [
        [],
        ["pattern=n_m", "sparsity=0.5"],
        ["report.mask_layers=[query,fc1]", "optimize=[val_sparse, speedup]"],
        ["experiment=a: b", "+x='it is # this'", "model.path=/a path/" + "long " * 40],
    ],
    ids=["none", "plain", "lists", "awkward"],
)
def test_the_command_is_that_of_the_overrides(make_result, tmp_path, overrides):
    (tmp_path / ".hydra").mkdir()
    (tmp_path / ".hydra" / "overrides.yaml").write_text(yaml.dump(overrides))
    assert shlex.split(run_command(make_result(), tmp_path)) == ["python", "run.py", *overrides]


def test_command_names_left_out_options(make_result, tmp_path):
    (tmp_path / ".hydra").mkdir()
    (tmp_path / ".hydra" / "overrides.yaml").write_text("- pattern=strips\n- importance._target_=own.Own\n")
    providers = ["hydra", "main", "command-line", "hydra.searchpath in command-line"]
    sources = [{"provider": name, "schema": "file", "path": "/c"} for name in providers]
    (tmp_path / ".hydra" / "hydra.yaml").write_text(yaml.dump({"hydra": {"runtime": {"config_sources": sources}}}))
    without = "--config-dir, hydra.searchpath, importance._target_"
    assert run_command(make_result(), tmp_path) == f"python run.py pattern=strips  # without {without}"


def test_command_from_record_names_options(make_result):
    assert "evil" not in run_command(make_result(pattern="../../results/evil"), None)


@pytest.mark.parametrize("text", [None, "not: a list", "- [unclosed"], ids=["gone", "no list", "torn"])
def test_without_overrides_the_record_tells_what_it_can(make_result, tmp_path, text):
    if text is not None:
        (tmp_path / ".hydra").mkdir()
        (tmp_path / ".hydra" / "overrides.yaml").write_text(text)
    command = run_command(make_result(), tmp_path)
    assert "python run.py model=vit_small dataset=digits pattern=tile_wise" in command
    assert "granularity=128 sparsity=0.75 seed=3  # from the record, parameters left out" in command


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("recovery", None, "recovery=none"),
        ("pattern.m", None, "pattern.m=null"),
        ("tile.whole_tiles", True, "tile.whole_tiles=true"),
        ("kernel_mode", "auto", "kernel=auto"),
        ("recovery.lr", 1e-05, "recovery.lr=1e-05"),
        ("pattern.candidates", ["n_m", {"name": "n_m", "m": 4}], "pattern.candidates=[n_m,{name:n_m,m:4}]"),
    ],
)
def test_settings_are_told_as_a_run_takes_them(key, value, text):
    assert override_text(key, value) == text


def test_provenance_and_a_badge_where_it_differs(make_result):
    usual = {"commit": "a" * 40, "gpu": "H200", "torch_version": "2.15.0"}
    results = [make_result(**usual, run_id=str(number)) for number in range(3)]
    odd = make_result(**usual | {"commit": "b" * 40 + "-dirty", "gpu": "H100"}, run_id="odd")
    assert unlike_the_rest([*results, odd]) == {
        "odd": ["GPU H100, elsewhere H200", "commit and kernels bbbbbbbbb-dirty, elsewhere aaaaaaaaa"]
    }
    assert unlike_the_rest(results) == {}
    assert provenance(odd)["commit"] == "bbbbbbbbb-dirty" and "driver" not in provenance(odd)
    assert provenance(odd)["kernels"] == "as of the commit" and "kernels" not in provenance(make_result(commit=None))
    chosen = [make_result(**usual, run_id=name, latency_kernel=name) for name in ("csr_sm90", "gathered_sm90")]
    assert unlike_the_rest(chosen) == {}, "which kernel runs is chosen for each point"


def test_missing_cells_are_named(make_result):
    def run(pattern, sparsity, **changes):
        return make_result(pattern=pattern, sparsity_target=sparsity, granularity=None, **changes)

    runs = [run("n_m", 0.5), run("n_m", 0.5, seed=4), run("n_m", 0.75), run("uniform", 0.75, recovery=None)]
    assert measured_cells(candidates_of(runs)) == [
        {"pattern": "n_m", "recovery": "finetune", "sparsity 0.5": "2 seeds", "sparsity 0.75": "1 seed"},
        {"pattern": "uniform", "recovery": "none", "sparsity 0.5": "missing", "sparsity 0.75": "1 seed"},
    ]
    assert measured_cells(candidates_of(runs[:3])) == [], "one line is no grid"
    searched = run("mixed", 0.95, allocation_parameters={"speedup": 1.5, "latency_ms": None})
    assert measured_cells(candidates_of([*runs, searched])) == measured_cells(candidates_of(runs)), (
        "a ceiling is no cell"
    )


def test_missing_cells_of_what_else_differs_are_named(make_result):
    """Free and balanced vectors were one line, whose cells were all filled."""

    def run(sparsity, distribution="free", **changes):
        held = {"pattern": "vector_wise", "granularity": 32, "sparsity_target": sparsity}
        return make_result(**held | {"pattern_parameters": {"distribution": distribution}} | changes)

    runs = [run(0.5), run(0.75), run(0.5, "balanced"), run(0.75, pattern="tile_wise", pattern_parameters={})]
    rows = measured_cells(candidates_of(runs))
    assert [line["distribution"] for line in rows] == ["", "balanced", "free"]
    assert rows[1] == {
        "pattern": "vector_wise 32",
        "distribution": "balanced",
        "recovery": "finetune",
        "sparsity 0.5": "1 seed",
        "sparsity 0.75": "missing",
    }
    several = [
        run(0.5, schedule="one_shot"),
        run(0.75, schedule="one_shot"),
        run(0.75, importance="taylor", schedule="gradual", allocation="erk"),
    ]
    apart = measured_cells(candidates_of(several))
    assert list(apart[0]) == ["pattern", "importance", "schedule", "recovery", "sparsity 0.5", "sparsity 0.75"], (
        "an allocation that only one of them records is no difference"
    )
    assert [line["sparsity 0.5"] for line in apart] == ["1 seed", "missing"]


def test_a_pattern_has_one_color_and_a_recovery_one_marker():
    known = ["tile_wise", "vector_wise", "block_wise", "n_m", "element_wise", "dense", "uniform", "channel"]
    known += ["shuffled_block", "tile_2_4", "block_2_4", "mixed", "depth"]
    colors = [pattern_color(pattern) for pattern in known]
    assert len(set(colors)) == len(known) and pattern_color("my_own") not in colors
    assert recovery_marker("finetune") == ("o", "circle") and recovery_marker(None) == recovery_marker("none")
    assert recovery_marker("my_own") == recovery_marker("my_own")


def test_what_is_no_pattern_has_no_color_of_a_pattern():
    patterns = {pattern_color(file.stem) for file in (ROOT / "conf" / "pattern").glob("*.yaml")}
    patterns |= {pattern_color(f"own_{number}") for number in range(100)}
    others = [style.color for style in series_styles(map(str, range(10))).values()]
    assert len(patterns) == 19 and len(set(others)) == 10 and not patterns & set(others)
    of_masks = {KEPT_COLOR, PRUNED_COLOR, GROUP_COLOR, WINDOW_COLOR}
    assert len(of_masks) == 4 and not of_masks & (patterns | set(others))


def test_shipped_recoveries_have_markers_of_their_own():
    shipped = [file.stem for file in (ROOT / "conf" / "recovery").glob("*.yaml")]
    for names in zip(*map(recovery_marker, shipped), strict=True):
        assert len(set(names)) == len(shipped) >= 10, names
    own = {recovery_marker(name) for name in ("my_own", "rigl")}
    assert len(own) == 2 and not own & set(map(recovery_marker, shipped))


def test_failed_points_are_told_with_their_command_and_reason(tmp_path, make_result, capsys):
    write_result_json(tmp_path / "sweep" / "0" / "row.json", make_result())
    for name, text in (("1", '{"error": "InvalidSetting", "message": "granularity=8: 1, 2 or <4>"}'), ("2", "{")):
        folder = tmp_path / "sweep" / name / ".hydra"
        folder.mkdir(parents=True)
        (folder.parent / "failure.json").write_text(text)
        (folder / "overrides.yaml").write_text("- granularity=8\n")
    assert main([str(tmp_path / "sweep"), f"out={tmp_path}"]) == 0
    told = capsys.readouterr().err
    assert "failed: 1: granularity=8: 1, 2 or <4>\n" in told and "failed: 2: " in told and "cannot be read" in told
    page = (tmp_path / "compare.html").read_text()
    assert "Failed: 2" in page and "granularity=8: 1, 2 or &lt;4&gt;" in page and "python run.py granularity=8" in page


def test_what_the_same_command_finished_later_is_no_failure(tmp_path, make_result, capsys):
    """A killed run stayed failed for ever, with exactly the command of the one that finished."""
    commands = {"killed": "- sparsity=0.5\n", "again": "- sparsity=0.5\n", "other": "- sparsity=0.9\n", "gone": None}
    for name, text in commands.items():
        (tmp_path / name / ".hydra").mkdir(parents=True)
        if text is not None:
            (tmp_path / name / ".hydra" / "overrides.yaml").write_text(text)
        if name != "again":
            (tmp_path / name / "failure.json").write_text('{"message": "the process was killed"}')
    write_result_json(tmp_path / "again" / "row.json", make_result())
    write_result_json(
        tmp_path / "as before" / "row.json", make_result()
    )  # the same run, made by a command in other words
    assert main([str(tmp_path), f"out={tmp_path}"]) == 0
    told = capsys.readouterr().err
    assert "failed: killed" not in told and "failed: other" in told and "failed: gone" in told
    page = (tmp_path / "compare.html").read_text()
    assert "Failed: 2" in page and "(1 run)" in page and '<div class="failed">' in page
