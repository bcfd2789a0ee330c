"""Thousands of rows: compared, appended to without reading all, and readable where they are shown."""

import io
import json
import subprocess
import sys

import pytest
from rich.console import Console

from sparsefront.results.comparable import CPU_NOTE, split_comparable
from sparsefront.results.record import result_fields
from sparsefront.results.store import append_result, format_lines
from sparsefront.results.tables import compact_table, print_group

ROWS = 3_000


@pytest.fixture
def large_store(tmp_path, mixed):
    """ROWS folders with a row.json each, one of them corrupt; every candidate ran with two seeds."""
    for number, result in enumerate(mixed(ROWS)):
        folder = tmp_path / "results" / str(number // 100) / str(number)
        folder.mkdir(parents=True)
        (folder / "row.json").write_text(result.to_json() if number != ROWS // 2 else '{"identity": ')
    return tmp_path


COMPARE = """
import resource, sys
import sparsefront.results.compare
late = {"torch", "transformers", "pytorch_lightning", "matplotlib"}
loaded = [late & sys.modules.keys()]
from sparsefront.__main__ import compare
status = compare(["results"])
loaded.append((late - {"matplotlib"}) & sys.modules.keys())
own = int(open("/proc/self/status").read().partition("VmHWM:")[2].split()[0])  # getrusage counts the parent before exec too
peaks = own, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
print(loaded, max(peaks) < 500_000 or peaks)
sys.exit(status)
"""


def test_thousands_are_compared_without_torch(large_store):
    """Which alone takes more than the 500 MB allowed here for all."""
    done = subprocess.run([sys.executable, "-c", COMPARE], cwd=large_store, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[set(), set()] True"
    half = ROWS // 2
    assert f"left out: results/{half // 100}/{half}/row.json: not JSON" in done.stderr
    assert f"{ROWS - 41} more runs: in compare.html, or rows=all" in done.stdout and len(done.stdout.splitlines()) < 250
    page = (large_store / "results" / "compare" / "compare.html").read_text()
    data = json.loads(page.partition('id="data">')[2].partition("</script>")[0])
    assert len(data["commands"]) == ROWS - 1 and len(data["sections"][0]["points"]) == half
    assert len(page) < 500 * ROWS


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


def test_two_hundred_mixed_runs_fit_eighty_columns(mixed):
    (group,) = split_comparable(mixed(200))
    console = Console(file=io.StringIO(), width=80)
    console.print(compact_table(group, 40))
    lines = console.file.getvalue().splitlines()
    told_apart = sum("lr=" in line for line in lines)
    assert 0 < told_apart <= 8 and len(lines) <= 48 + told_apart and max(map(len, lines)) <= 80
    best = max(group.points(), key=lambda point: point.val)
    first = next(line for line in lines if "×" in line)
    assert best.candidate.pattern in first and f"{best.quality:.2f} ± " in first
    assert any(line.endswith("winner") for line in lines) and any(line.endswith("recipe") for line in lines)
    meanings = ["winner: best of its sparsity on held-out data", "recipe: best of its pattern there"]
    assert [line.strip() for line in lines[-2:]] == meanings


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


def test_names_stay_whole_where_settings_fold(make_result):
    shared = {"pattern": "shuffled_block", "granularity": 32, "recovery": "weight_rewind", "val_sparse": 0.9}
    results = [
        make_result(
            **shared,
            run_id=f"{name} {seed}",
            seed=seed,
            sparse=0.9 + 0.001 * seed,
            sparsity_achieved=achieved,
            pattern_parameters={"search": name},
            recovery_parameters={"rate": name},
        )
        for name, achieved in (("a_value_with_a_long_name", 0.75), ("another_value_with_a_long_name", 0.42))
        for seed in (0, 1)
    ]
    (group,) = split_comparable(results)
    console = Console(file=io.StringIO(), width=80)
    console.print(compact_table(group))
    text = console.file.getvalue()
    assert "shuffled_block 32 " in text and "weight_rewind " in text and "recipe" in text
    assert "0.42 " in text and "achieved" in text, "why it is not picked"


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


def test_a_narrow_terminal_is_told_what_a_wide_one_is(make_result, capsys, monkeypatch):
    """That nothing may be picked, and which is better, stood below the wide tables alone."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    full = {"dataset_parameters": {"valid_fraction": 0}, "val_sparse": None}
    (group,) = split_comparable([make_result(**full, run_id=name, pattern=name) for name in ("n_m", "tile_wise")])
    told = [CPU_NOTE, "2 of 2 results hold nothing out (dataset.valid_fraction=0)", "[n_m] is better (+1.00 points"]
    for columns in ("80", "400"):
        monkeypatch.setenv("COLUMNS", columns)
        print_group(group, ["[n_m] is better (+1.00 points)"])
        shown = " ".join(capsys.readouterr().out.split())
        assert all(text in shown for text in told), columns
