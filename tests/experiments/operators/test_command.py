"""The command as it is called, and the files that ship with the measurements."""

from pathlib import Path

from experiments.operators import crossover, kernels_by_m
from experiments.operators.draw import main
from experiments.operators.measurements import read_measurements

SHIPPED = Path(__file__).resolve().parents[3] / "experiments" / "operators"
TABLES = ("crossover.csv", "kernels_by_m.csv")


def test_shipped_tables_follow_their_measurements(tmp_path):
    again, measurements = "python -m experiments.operators.draw", read_measurements(SHIPPED / "h200.csv").measurements
    crossover.write_csv(crossover.crossovers(measurements), tmp_path / "crossover.csv")
    kernels_by_m.write_by_m_csv(kernels_by_m.times_by_m(measurements), tmp_path / "kernels_by_m.csv")
    for name in TABLES:
        assert (SHIPPED / name).read_text() == (tmp_path / name).read_text(), f"after new measurements: {again}"


def test_page_has_the_table_of_crossovers():
    measurements = read_measurements(SHIPPED / "h200.csv").measurements
    table = crossover.markdown(crossover.crossovers(measurements), "fp16")
    assert "\n".join(table) in (SHIPPED / "README.md").read_text()


def test_wrong_rows_are_counted(measured, results_file, tmp_path, capsys):
    path = results_file([measured(), measured(2.0, sparsity=0.75)], wrong=[measured(m=1)])
    assert main([str(path), "-o", str(tmp_path)]) == 0
    assert "left out: 1 rows" in capsys.readouterr().err


def test_errors_are_one_line(tmp_path, capsys):
    (tmp_path / "rows.csv").write_text("family,kernel\ngathered,gathered_sm90\n")
    assert main([str(tmp_path / "rows.csv"), "-o", str(tmp_path / "out")]) == 1
    assert "rows.csv lacks the columns pattern, granularity" in capsys.readouterr().err
    assert main([str(tmp_path / "nowhere.csv"), "-o", str(tmp_path / "out")]) == 1
    assert "nowhere.csv" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
