"""`rows.csv` is derived from the `row.json` files; stores of several machines become one."""

import csv
from pathlib import Path

import pytest

from sparsefront.__main__ import compare as main
from sparsefront.results.store import append_result, read_results, write_result_json


@pytest.fixture
def study(tmp_path, make_result):
    """A folder of three runs with the rows.csv that they wrote."""
    for number in range(3):
        result = make_result(run_id=f"run-{number}", seed=number, time=f"2026-01-0{number + 1}T00:00:00+00:00")
        write_result_json(tmp_path / "study" / str(number) / "row.json", result)
        append_result(tmp_path / "study" / "rows.csv", result)
    return tmp_path / "study"


def runs_of(store: Path) -> list[str]:
    with store.open(newline="") as file:
        return [line["run_id"] for line in csv.DictReader(file)]


def test_a_corrupt_row_is_named_and_its_line_kept(study, capsys):
    (study / "1" / "row.json").write_text('{"identity": ')
    assert main(["--rebuild", str(study)]) == 0
    said = capsys.readouterr()
    assert f"left out: {study / '1' / 'row.json'}: not JSON" in said.err
    kept = "3 runs, 1 of them old lines, kept since their row.json is missing or cannot be read"
    assert said.out == f"{study / 'rows.csv'}: {kept}\n"
    assert sorted(runs_of(study / "rows.csv")) == ["run-0", "run-1", "run-2"]
    (study / "rows.csv").unlink()
    main(["--rebuild", str(study)])
    assert runs_of(study / "rows.csv") == ["run-0", "run-2"]


@pytest.mark.parametrize(
    "text",
    ["", "[]", "null", '{"identity": 3}', '{"identity": {"schema_version": 6}}', "[" * 100_000, "\x00\xff"],
    ids=["empty", "list", "null", "number", "nothing in it", "deep", "bytes"],
)
def test_every_kind_of_corrupt_row_is_skipped(study, text):
    (study / "1" / "row.json").write_text(text, encoding="latin-1")
    reading = read_results([study])
    assert [result.identity.run_id for result in reading.results] == ["run-0", "run-2"]
    (problem,) = reading.problems
    assert problem.startswith(str(study / "1" / "row.json"))


def test_several_stores_become_one(study, tmp_path, make_result, capsys):
    other = tmp_path / "other" / "rows.csv"
    append_result(other, make_result(run_id="run-1", speedup=9.0, time="2026-02-01T00:00:00+00:00"))
    append_result(other, make_result(run_id="far", seed=8))
    merged = tmp_path / "all" / "rows.csv"
    assert main(["--rebuild", str(study), str(other), f"store={merged}"]) == 0
    assert sorted(runs_of(merged)) == ["far", "run-0", "run-1", "run-2"]
    speedups = {result.identity.run_id: result.speed.speedup for result in read_results([merged]).results}
    assert speedups["run-1"] == 9.0, "the newest measurement of a run counts"
    once = merged.read_bytes()
    assert main(["--rebuild", str(study), str(other), f"store={merged}"]) == 0 and merged.read_bytes() == once
    assert len(read_results([study, other]).results) == 5, "what compare reads of both"


@pytest.fixture
def damaged(make_result):
    """damaged(store) leaves three lines that cannot be read: edited, of a newer version with its columns, and one edited
    whose row.json is there.
    """

    def damage(store: Path) -> None:
        for run_id in ("edited", "newer"):
            append_result(store, make_result(run_id=run_id))
        with store.open(newline="") as file:
            lines = list(csv.DictReader(file))
        for line in lines:
            if line["run_id"] in ("edited", "run-1"):
                line |= {"speedup": "9.0", "record_sha256": "0" * 64}
            if line["run_id"] == "newer":
                line |= {"schema_version": "99", "brand_new": "kept"}
        with store.open("w", newline="") as file:
            writer = csv.DictWriter(file, [*lines[0], "brand_new"])
            writer.writeheader()
            writer.writerows(lines)

    return damage


def test_a_merged_file_keeps_its_lines_that_cannot_be_read(study, damaged, tmp_path, capsys):
    store = tmp_path / "all.csv"
    damaged(store)
    assert main(["--rebuild", str(study), f"store={store}"]) == 0
    assert runs_of(store) == ["run-0", "run-1", "run-2", "edited", "newer"]
    assert "3 runs, and 2 lines kept that cannot be read" in capsys.readouterr().out


@pytest.mark.parametrize("text", ["name,price\napple,1\n", "one line without an end", '{"identity": {}}\n'])
def test_a_file_that_is_no_table_of_results_is_not_overwritten(study, tmp_path, capsys, text):
    mine = tmp_path / "mine.csv"
    for store, arguments in ((mine, [f"store={mine}"]), (study / "rows.csv", [])):
        store.write_text(text)
        assert main(["--rebuild", str(study), *arguments]) == 1
        assert f"{store}: is not overwritten: no table of results" in capsys.readouterr().err
        assert store.read_text() == text


def test_a_record_is_not_overwritten_by_a_table(study, capsys):
    record = study / "0" / "row.json"
    before = record.read_text()
    assert main(["--rebuild", str(study), f"store={record}"]) == 1
    assert "row.json: must end in .csv" in capsys.readouterr().err and record.read_text() == before


def test_a_folder_without_runs_is_no_store(tmp_path, capsys):
    empty = tmp_path / "empty"
    empty.mkdir()
    assert main(["--rebuild", str(empty)]) == 1
    assert "holds no row.json to make rows.csv from" in capsys.readouterr().err


def test_several_processes_read_what_one_reads(study, monkeypatch):
    monkeypatch.setattr("sparsefront.results.store.FILES_FOR_PROCESSES", 2)
    (study / "1" / "row.json").write_text("{")
    one, two = read_results([study]), read_results([study], processes=2)
    assert (one.results, one.problems, one.places) == (two.results, two.problems, two.places)
