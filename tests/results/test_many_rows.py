"""Thousands of rows: compared, appended to without reading all, and readable where they are shown."""

import io

import pytest
from rich.console import Console

from sparsefront.results.comparable import split_comparable
from sparsefront.results.record import result_fields
from sparsefront.results.store import append_result, format_lines
from sparsefront.results.tables import compact_table, print_group


def test_appending_parses_no_store(tmp_path, make_result, monkeypatch):
    """A large one is searched as bytes."""
    store, names = tmp_path / "rows.csv", [field.name for field in result_fields()]
    cells = {name: "" if value is None else value for name, value in make_result().flat().items()}
    lines = ({**cells, "run_id": f"old-{number}"} for number in range(10_000))
    store.write_text(format_lines(names, lines, with_header=True))
    with monkeypatch.context() as patch:
        patch.setattr("sparsefront.results.store._parts_of", pytest.fail)
        for number in range(20):
            append_result(store, make_result(run_id=f"new-{number}"))
    append_result(store, make_result(run_id="old-77", seed=12321))
    text = store.read_text()
    assert text.count("\nold-77,") == 1 and "12321" in text and text.count("\nnew-") == 20


def test_lines_that_differ_in_a_setting_alone_tell_it(make_result):
    def lines(*changes: dict) -> list[str]:
        results = [make_result(run_id=str(number), **change) for number, change in enumerate(changes)]
        (group,) = split_comparable(results)
        console = Console(file=io.StringIO(), width=80)
        console.print(compact_table(group))
        return console.file.getvalue().splitlines()[4:]

    rates = [{"recovery_parameters": {"lr": rate, "epochs": 3}} for rate in (0.001, 0.002)]
    told = " ".join(lines(*rates, {"pattern": "n_m"}))
    assert "lr=0.001" in told and "lr=0.002" in told and "epochs" not in told and told.count("lr=") == 2
    assert "lr=" not in " ".join(lines(rates[0], rates[1] | {"recovery": "distill"})), "the recovery tells them apart"
    parts = [{"pattern_parameters": {"axis": name}, "schedule": name} for name in ("a", "b")]
    told = [line.strip() for line in lines(*parts)]
    assert {"axis=a", "axis=b", "schedule=a", "schedule=b"} <= set(told), "as pattern.axis= and schedule= of run.py"


def test_a_narrow_terminal_gets_the_table_that_fits(mixed, capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "80")
    (group,) = split_comparable(mixed(200))
    print_group(group, [], most=10)
    shown = capsys.readouterr().out
    assert "90 more candidates: in compare.html, or rows=all" in shown and "run_id" not in shown
    assert "- at ≤ 1 point lost the fastest measured is" in shown
    print_group(group, [], most=99)
    assert "1 more candidate: in compare.html" in capsys.readouterr().out
    print_group(group, [], most=None)
    assert "more candidate" not in capsys.readouterr().out
