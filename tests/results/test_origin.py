"""Where a result comes from: its command, its machine and software, and the cells of a study that are missing."""

import shlex

import pytest
import yaml

from sparsefront.__main__ import compare as main
from sparsefront.results.candidates import candidates_of
from sparsefront.results.columns import tabulate_seeds
from sparsefront.results.run_folder import override_text, run_command
from sparsefront.results.store import write_result_json


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
def test_command_of_the_overrides(make_result, tmp_path, overrides):
    (tmp_path / ".hydra").mkdir()
    (tmp_path / ".hydra" / "overrides.yaml").write_text(yaml.dump(overrides))
    assert shlex.split(run_command(make_result(), tmp_path)) == ["python", "run.py", *overrides]


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
def test_settings_as_a_run_takes_them(key, value, text):
    assert override_text(key, value) == text


def test_missing_cells_are_named(make_result):
    """Free and balanced vectors were one line, whose cells were all filled."""

    def run(sparsity, distribution="free", **changes):
        held = {"pattern": "vector_wise", "granularity": 32, "sparsity_target": sparsity}
        return make_result(**held | {"pattern_parameters": {"distribution": distribution}} | changes)

    runs = [run(0.5), run(0.75), run(0.5, "balanced"), run(0.75, pattern="tile_wise", pattern_parameters={})]
    rows = tabulate_seeds(candidates_of(runs))
    assert [line["distribution"] for line in rows] == ["", "balanced", "free"]
    names = ("pattern", "distribution", "recovery", "sparsity 0.5", "sparsity 0.75")
    assert list(rows[1].items()) == list(zip(names, ("vector_wise 32", "balanced", "finetune", "1 seed", "missing")))
    several = [run(sparsity, schedule="one_shot") for sparsity in (0.5, 0.75)]
    several += [run(0.75, importance="taylor", schedule="gradual", allocation="erk")]
    apart = tabulate_seeds(candidates_of(several))
    assert list(apart[0]) == ["pattern", "importance", "schedule", "recovery", "sparsity 0.5", "sparsity 0.75"], (
        "an allocation that only one of them records is no difference"
    )
    assert [line["sparsity 0.5"] for line in apart] == ["1 seed", "missing"]


def test_failed_points_tell_their_command(tmp_path, make_result, capsys):
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
