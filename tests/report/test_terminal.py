"""What is printed at the end of a run and of a sweep: paths can be copied from one line."""

from pathlib import Path

from sparsefront.report.terminal import Failure, print_failures, print_run

DEEP = Path("/") / "/".join(f"a_folder_with_a_long_name_{number}" for number in range(9)) / "row.json"


def test_a_path_is_never_folded(make_result, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    print_run(make_result(), [DEEP, Path("results.csv").absolute()])
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert str(DEEP) in lines
    assert "results.csv" in lines, "short where the user stands above it"


def test_a_table_that_goes_to_a_file_is_not_squeezed(make_result, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    reason = "inputs 30 are not a multiple of granularity 128, nor of anything else that is asked for"
    print_run(make_result(dense_layers={"layer": reason}), [])
    assert reason in capsys.readouterr().out


def test_failures_are_told_with_overrides_and_reason(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    reason = f"dataset.path={DEEP}: needs [K] a multiple of 8 [bold] [/red]"
    print_failures([Failure("3", ["pattern=n_m", "sparsity=0.5"], reason), Failure("4", [], "why")])
    lines = capsys.readouterr().out.splitlines()
    assert lines == ["2 failed:", "  3: pattern=n_m sparsity=0.5", f"     {reason}", "  4: ", "     why"]
