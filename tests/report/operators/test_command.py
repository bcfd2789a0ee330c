"""The command as it is called, and the files that ship with the measurements."""

from pathlib import Path

import pytest

from sparsefront.report.operators.__main__ import main

SHIPPED = Path(__file__).resolve().parents[3] / "experiments" / "operators"
FILES = ("roofline.png", "winners.png", "crossover.md", "crossover.csv")


@pytest.fixture(scope="module")
def drawn(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("operators")
    assert main([str(SHIPPED / "h200.csv"), "-o", str(folder / "out")]) == 0
    return folder / "out"


def test_four_files(drawn):
    assert {path.name for path in drawn.iterdir()} == set(FILES)


def test_shipped_tables_are_those_of_the_shipped_measurements(drawn):
    again = "python -m sparsefront.report.operators experiments/operators/h200.csv -o experiments/operators"
    for name in ("crossover.md", "crossover.csv"):
        assert (SHIPPED / name).read_text() == (drawn / name).read_text(), f"after new measurements: {again}"


def test_pictures_are_small(drawn):
    for folder in (drawn, SHIPPED):
        for name in ("roofline.png", "winners.png"):
            assert (folder / name).stat().st_size <= 100_000


def test_wrong_rows_are_counted(measured, results_file, tmp_path, capsys):
    path = results_file([measured(), measured(2.0, sparsity=0.75)], wrong=[measured(m=1)])
    assert main([str(path), "-o", str(tmp_path)]) == 0
    assert "left out: 1 rows" in capsys.readouterr().err


def test_errors_are_one_line(tmp_path, capsys):
    (tmp_path / "rows.csv").write_text("family,kernel\ngathered,gathered_cuda\n")
    assert main([str(tmp_path / "rows.csv"), "-o", str(tmp_path / "out")]) == 1
    assert "rows.csv lacks the columns pattern, granularity" in capsys.readouterr().err
    assert main([str(tmp_path / "nowhere.csv"), "-o", str(tmp_path / "out")]) == 1
    assert "nowhere.csv" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
