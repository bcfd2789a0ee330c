"""Tables of points that a study publishes, and CSV files of something else, as `compare.py` takes them."""

import csv
from pathlib import Path

import pytest

from sparsefront.__main__ import compare as main
from sparsefront.errors import InvalidSetting
from sparsefront.results.comparable import split_comparable
from sparsefront.results.compare import _read
from sparsefront.results.compare_arguments import parse

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "experiments").glob("**/*.csv"))
POINTS = [
    *(
        "end_to_end/h200.csv",
        "front/squad.csv",
        "low_precision/large.csv",
        "low_precision/networks.csv",
        "nmsparse_bert/points.csv",
        "pytorch_talk/points.csv",
        "recoveries/points.csv",
    ),
    *("search/minilm.again.csv", "search/minilm.csv"),
    *("search/minilm_h100.again.csv", "search/minilm_h100.csv", "sweeps/minilm.csv", "sweeps/minilm_h100.csv"),
    *("tile_wise_bert/points.csv", "tile_wise_vgg/points.csv", "uniform/points.csv", "uniform_mt/points.csv"),
]


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT / "experiments")))
def test_every_published_file_opens_or_tells_what_it_is(file, capsys):
    request = parse([str(file)])
    if str(file.relative_to(ROOT / "experiments")) not in POINTS:
        with pytest.raises(InvalidSetting, match="not accuracy and latency of networks") as refused:
            _read(request)
        assert "\n" not in str(refused.value)
        return
    reading = _read(request)
    with file.open(newline="") as opened:
        lines = [line for line in csv.DictReader(opened) if not line.get("unsupported")]
    assert len(reading.results) == len(lines)
    assert all("refused before a run" in problem for problem in reading.problems)
    ignores_some = file.parent.name != "front"  # whose columns are all fields of results
    assert capsys.readouterr().err.count("\n") == ignores_some, "one line names what is ignored"
    groups = split_comparable(reading.results)
    side = next((name for name in ("sparse", "test_sparse") if name in lines[0]), "masked")
    drawn = sum(bool(line.get(side) or line.get("masked")) for line in lines)
    assert sum(group.notes() is not None for group in groups) and bool(drawn) == any(group.points() for group in groups)
    assert {result.choice.pattern for result in reading.results} >= {
        line["pattern"] for line in lines if "pattern" in line
    }


def test_what_a_table_of_points_lacks_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("mine.csv").write_text("masked,seed,colour\n0.9,0,red\n")
    assert main(["mine.csv"]) == 1
    assert "has no column pattern, sparsity_target; a table of points needs" in capsys.readouterr().err
    Path("mine.csv").write_text("pattern,sparsity,masked,dense,colour\nn_m,0.5,0.9,0.91,red\nn_m,0.75,much,0.91,red\n")
    assert main(["mine.csv"]) == 0
    told = capsys.readouterr()
    assert "mine.csv: columns that are ignored: colour\n" in told.err and "mine.csv, point 2: masked" in told.err
    assert "90.00 %" in told.out and "n_m" in Path("results/compare/compare.html").read_text()
