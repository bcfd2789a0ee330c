"""Rows on disk: nothing lost with two writers, columns that grow, half lines repaired, broken files reported."""

import csv
import subprocess
import sys
from pathlib import Path

import pytest

from sparsefront.report.store import append_row, read_rows, write_row_json

WRITER = """
import dataclasses, sys
from pathlib import Path
from sparsefront.report.row import Row
from sparsefront.report.store import append_row
name, template, store, count = sys.argv[1:]
row = Row.from_json(Path(template).read_text())
for number in range(int(count)):
    identity = dataclasses.replace(row.identity, run_id=f"{name}-{number}")
    append_row(Path(store), dataclasses.replace(row, identity=identity))
"""


def lines_of(store: Path) -> list[dict[str, str]]:
    with store.open(newline="") as file:
        return list(csv.DictReader(file))


def test_rows_come_back_as_they_were(tmp_path, make_row):
    rows = [make_row(run_id=f"run-{number}", seed=number) for number in range(3)]
    for row in rows:
        append_row(tmp_path / "deep" / "rows.csv", row)
    reading = read_rows([tmp_path / "deep" / "rows.csv"])
    assert reading.rows == rows and reading.problems == []


def test_two_processes_lose_nothing(tmp_path, make_row):
    template = write_row_json(tmp_path / "template.json", make_row())
    store = tmp_path / "rows.csv"
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, name, str(template), str(store), "50"]) for name in ("a", "b")
    ]
    assert [writer.wait(timeout=180) for writer in writers] == [0, 0]
    reading = read_rows([store])
    assert reading.problems == []
    assert {row.identity.run_id for row in reading.rows} == {
        f"{name}-{number}" for name in "ab" for number in range(50)
    }


def test_a_new_column_keeps_the_old_lines(tmp_path, make_row):
    store = tmp_path / "rows.csv"
    old = make_row(run_id="old").flat()
    del old["sparse_flops_share"]
    with store.open("w", newline="") as file:
        writer = csv.DictWriter(file, [*old, "added_by_hand"])
        writer.writeheader()
        writer.writerow(old | {"added_by_hand": "keep me"})
    append_row(store, make_row(run_id="new"))
    first, second = lines_of(store)
    assert first["run_id"] == "old" and first["added_by_hand"] == "keep me" and first["sparse_flops_share"] == ""
    assert second["run_id"] == "new" and second["sparse_flops_share"] == "0.5"


@pytest.mark.parametrize("kept_of_last_line", [1, 40, -3, -1], ids=["1", "40", "all but 3", "all but the line end"])
def test_half_a_line_is_dropped_and_the_rest_kept(tmp_path, make_row, caplog, kept_of_last_line):
    store = tmp_path / "rows.csv"
    append_row(store, make_row(run_id="whole"))
    whole = store.read_bytes()
    append_row(store, make_row(run_id="torn"))
    store.write_bytes(whole + store.read_bytes()[len(whole) :][:kept_of_last_line])
    assert [row.identity.run_id for row in read_rows([store]).rows] == ["whole"]
    assert "half a line" in read_rows([store]).problems[0]
    append_row(store, make_row(run_id="next"))
    assert [line["run_id"] for line in lines_of(store)] == ["whole", "next"]
    assert "half a line" in caplog.text
    assert read_rows([store]).problems == []


def test_a_line_torn_inside_a_quoted_line_end_is_dropped(tmp_path, make_row):
    store = tmp_path / "rows.csv"
    append_row(store, make_row(run_id="whole"))
    with store.open("a") as file:
        file.write('torn,"a cell that goes\n')
    append_row(store, make_row(run_id="next"))
    assert [row.identity.run_id for row in read_rows([store]).rows] == ["whole", "next"]


def test_a_run_has_one_line_and_the_newest_wins(tmp_path, make_row):
    store = tmp_path / "rows.csv"
    for run_id, speedup in (("a", 1.0), ("b", 1.0), ("a", 2.0)):
        append_row(store, make_row(run_id=run_id, speedup=speedup))
    assert [(line["run_id"], line["speedup"]) for line in lines_of(store)] == [("b", "1.0"), ("a", "2.0")]


def test_cells_longer_than_the_csv_module_allows_by_itself(tmp_path, make_row):
    row = make_row(dense_layers={"layer": "x" * 300_000})
    append_row(tmp_path / "rows.csv", row)
    append_row(tmp_path / "rows.csv", make_row(run_id="next"))
    assert read_rows([tmp_path / "rows.csv"]).rows[0] == row


def test_json_is_written_whole_and_leaves_no_other_file(tmp_path, make_row):
    path = write_row_json(tmp_path / "run" / "row.json", make_row())
    write_row_json(path, make_row(seed=8))
    assert [file.name for file in path.parent.iterdir()] == ["row.json"]
    assert read_rows([path]).rows == [make_row(seed=8)]


def test_folders_are_searched_and_broken_files_reported(tmp_path, make_row):
    write_row_json(tmp_path / "one" / "row.json", make_row(run_id="one"))
    write_row_json(tmp_path / "sweep" / "pattern=n_m" / "row.json", make_row(run_id="two"))
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "row.json").write_text('{"identity": {')
    append_row(tmp_path / "rows.csv", make_row(run_id="one"))
    reading = read_rows([tmp_path, tmp_path / "nowhere", tmp_path / "one" / "row.json"])
    assert sorted(row.identity.run_id for row in reading.rows) == ["one", "two"]
    assert len(reading.problems) == 2
    assert "broken" in reading.problems[0] and "nowhere" in reading.problems[1]


def test_a_folder_without_row_files_falls_back_to_its_store(tmp_path, make_row):
    append_row(tmp_path / "study" / "rows.csv", make_row())
    assert read_rows([tmp_path]).rows == [make_row()]


def test_one_bad_line_does_not_lose_the_others(tmp_path, make_row):
    store = tmp_path / "rows.csv"
    append_row(store, make_row(run_id="good"))
    append_row(store, make_row(run_id="bad", seed=12321))
    store.write_text(store.read_text().replace("12321", "three"))
    reading = read_rows([store])
    assert [row.identity.run_id for row in reading.rows] == ["good"]
    assert "row 2" in reading.problems[0] and "seed" in reading.problems[0]
