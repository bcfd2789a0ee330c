"""Result folders are exchanged: whatever lies in one of them, it is named in one line and the others are shown.

Tables of points that a study publishes, and CSV files of something else, as `compare.py` takes them.
"""

import csv
import json
import os
from pathlib import Path

import numpy as np
import pytest

from sparsefront.__main__ import compare as main
from sparsefront.results.run_folder import _tell, overrides_command, read_overrides
from sparsefront.results.store import read_results, write_result_json
from sparsefront.tasks.outcomes import Outcomes, save_outcomes

LAUGHS = "\n".join(["a0: &a0 [lol]", *(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 10))])


@pytest.fixture
def folder(tmp_path, monkeypatch, make_result):
    """A folder of results: one run that is sound, and `bad/`."""
    monkeypatch.chdir(tmp_path)
    write_result_json(tmp_path / "results" / "good" / "row.json", make_result(run_id="good"))
    (tmp_path / "results" / "bad").mkdir()
    _tell.cache_clear()
    return tmp_path / "results"


def edited(text: str, group: str, name: str, value: object) -> str:
    content = json.loads(text)
    content[group][name] = json.loads(value) if isinstance(value, str) else value
    return json.dumps(content)


BAD_ROWS = {  # damage -> complaint
    "deep": (lambda text: "[" * 100_000 + "]" * 100_000, "is nested deeper than 64 levels"),
    "encoding": (lambda text: text.encode("utf-16"), "is UTF-16 text; save it as UTF-8"),
    "byte": (lambda text: text.encode().replace(b"tile_wise", b"tile\xffwise"), "is not UTF-8 text (byte 0xff"),
    "NaN": (lambda text: text.replace("0.97", "NaN"), "not JSON (NaN is no number)"),
    "infinity": (lambda text: text.replace("0.97", "1e999"), "holds the number 1e999, which is too large"),
    "digits": (lambda text: text.replace("4000000", "9" * 400), "holds a whole number of 400 digits"),
    "half a character": (lambda text: text.replace("tile_wise", "\\ud800"), "a string holds half a character"),
    "list": (lambda text: "[]", "not a result: it has no identity"),
}
LAYERS, CURVE = "kernels.kernel_per_layer", "speed.curve"
BAD_VALUES = {  # field, its value -> complaint
    ("quality.masked", 1e308): "quality.masked=1e+308: Input should be less than or equal to",
    (LAYERS, '{"layer": {"candidates": 7}}'): f"{LAYERS}.layer.candidates=7: Input should be a valid dictionary",
    (LAYERS, '{"layer": null}'): f"{LAYERS}.layer=None: Input should be a valid dictionary",
    ("sparsity.sparsity_per_layer", '{"layer": "half"}'): "layer='half': Input should be a valid number",
    (CURVE, "[{}]"): f"{CURVE}.0.batch_size: Field required",
    ("speed.speedup_high", -1.0): "speed.speedup_high=-1.0: Input should be greater than 0",
}
BAD_ROWS |= {
    f"{field} {value}": (lambda text, field=field, value=value: edited(text, *field.split("."), value), complaint)
    for (field, value), complaint in BAD_VALUES.items()
}


@pytest.mark.parametrize("kind", BAD_ROWS)
def test_bad_row_is_named(folder, make_result, capsys, kind):
    damage, complaint = BAD_ROWS[kind]
    content = damage(make_result(run_id="bad").to_json())
    (folder / "bad" / "row.json").write_bytes(content if isinstance(content, bytes) else content.encode())
    for arguments in (["results"], ["--rebuild", "results"]):
        assert main(arguments) == 0
        said = capsys.readouterr()
        (line,) = said.err.splitlines()
        assert line.startswith("left out: results/bad/row.json: ") and complaint in line
    assert main(["results"]) == 0
    assert "good" in capsys.readouterr().out


@pytest.mark.parametrize("kind", ["folder", "pipe", "link to itself"])
def test_what_is_no_file_is_named(folder, capsys, kind):
    row = folder / "bad" / "row.json"
    {"folder": row.mkdir, "pipe": lambda: os.mkfifo(row), "link to itself": lambda: row.symlink_to(row.name)}[kind]()
    assert main(["results"]) == 0
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("left out: results/bad/row.json: ")


def test_names_are_shown_as_text(folder, make_result, capsys):
    """A formula in a name stopped the plot, half a character the page, and an escape sequence cleared the terminal."""
    hostile = {
        "pattern": r"$\frac{$",
        "model": "vit\x1b[2J\udce4",
        "recovery": "$x",
        "dataset": "\u202edigits",
        "n_of_m": r"$\frac$",
        "metric_name": r"accuracy$\sqrt{$",
        "latency_kernel": "\x9b31m",
    }
    for name, changes in (("bad", hostile), ("twin", hostile | {"recovery": "none"})):
        result = make_result(run_id=f"{name}\x07", **changes)
        write_result_json(folder / name / "row.json", result)
    assert main(["results"]) == 0
    said = capsys.readouterr()
    assert not set(said.out + said.err) & set("\x1b\x07\x9b\u202e\udce4")
    assert r"vit\x1b[2J\udce4" in said.out and said.err == ""
    assert "good" in (folder / "compare" / "compare.html").read_text()


@pytest.mark.parametrize(
    "text, complaint",
    [
        (LAUGHS, "stands for more than"),
        ("[" * 100_000, "is nested deeper than 64 levels"),
        ("", "is empty"),
        ("- a: 1\n", "is no list of overrides"),
        ("- \x1b[2J\n", "not YAML (unacceptable character #x001b"),
        ("- !!python/object:os.system ls\n", "not YAML"),
        (b"\xff\xfe-\x00", "is UTF-16 text"),
    ],
)
def test_unreadable_overrides_are_named(folder, capsys, caplog, make_result, text, complaint):
    write_result_json(folder / "bad" / "row.json", make_result(run_id="bad"))
    hydra = folder / "bad" / ".hydra"
    hydra.mkdir()
    (hydra / "overrides.yaml").write_bytes(text if isinstance(text, bytes) else text.encode())
    (hydra / "hydra.yaml").write_text(f"provider: command-line\n{LAUGHS}")
    assert main(["results"]) == 0
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 1 and told[0].startswith(f"results/bad/.hydra/overrides.yaml: {complaint}")
    assert told[0].endswith("; the run's command is taken from its record")
    assert read_overrides(folder / "bad") is None and overrides_command(folder / "bad") is None
    assert "2 runs compared" in (folder / "compare" / "compare.html").read_text()


def test_unreadable_outcomes_are_named(folder, make_result, caplog):
    """What they would decide is not claimed."""
    result = make_result(run_id="bad", outcomes_file="outcomes.npz", evaluated_samples=4)
    write_result_json(folder / "bad" / "row.json", result)
    save_outcomes(folder / "bad" / "outcomes.npz", {"sparse": Outcomes("accuracy", np.ones(5), None, "dev")})
    reading = read_results([folder])
    assert reading.outcomes_of(result) is None and reading.outcomes_of(result) is None
    (record,) = caplog.records
    assert "bad/outcomes.npz: sparse.npy states 5 values, more than were evaluated" in record.getMessage()


@pytest.mark.parametrize("content", [b"\xff", b"a\0b\n"])
def test_unreadable_list_of_runs(folder, capsys, content):
    (folder / "sweep.front.txt").write_bytes(content)
    assert main(["results/sweep.front.txt"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("results=results/sweep.front.txt: ")


def test_cells_of_a_table_are_bounded(folder, make_result, capsys):
    table = folder / "bad" / "rows.csv"
    line = {name: "" if value is None else value for name, value in make_result(run_id="bad").flat().items()}
    for name, value in (("seed", "9" * 400), ("kernel_per_layer", "[" * 100_000), ("speedup", "nan")):
        with table.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(line))
            writer.writeheader()
            writer.writerow(line | {name: value})
        assert main(["results/good", str(table)]) == 0
        (told,) = capsys.readouterr().err.splitlines()
        assert f"rows.csv, result 1: {name if name != 'speedup' else 'speed.speedup'}=" in told and len(told) < 300


STUDIES = ("nmsparse_bert", "pytorch_talk", "recoveries", "tile_wise_bert", "tile_wise_vgg", "uniform", "uniform_mt")
POINTS = [f"{study}/points.csv" for study in STUDIES] + ["end_to_end/h200.csv", "front/squad.csv"]
POINTS += [f"{name}.csv" for name in ("low_precision/large", "low_precision/networks", "search/minilm.again")]
POINTS += [f"search/{name}.csv" for name in ("minilm", "minilm_h100", "minilm_h100.again")]
POINTS += ["sweeps/minilm.csv", "sweeps/minilm_h100.csv"]


def test_table_of_points_lacks_a_column(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("mine.csv").write_text("masked,seed,colour\n0.9,0,red\n")
    assert main(["mine.csv"]) == 1
    assert "it has no column pattern, sparsity_target\n" in capsys.readouterr().err
    Path("mine.csv").write_text("pattern,sparsity,masked,dense,colour\nn_m,0.5,0.9,0.91,red\nn_m,0.75,much,0.91,red\n")
    assert main(["mine.csv"]) == 0
    told = capsys.readouterr()
    assert "mine.csv: columns that are ignored: colour\n" in told.err and "mine.csv, point 2: masked" in told.err
    assert "90.00 %" in told.out and "n_m" in Path("results/compare/compare.html").read_text()
