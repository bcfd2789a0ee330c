"""The command as it is called, and the files that ship with the measurements."""

from experiments.operators.draw import main


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
