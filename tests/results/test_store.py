"""Results on disk: nothing lost with two writers, columns that grow, half lines repaired, broken files reported.

`rows.csv` is derived from the `row.json` files; stores of several machines become one.

A table of results that a spreadsheet opened: nothing in it is calculated, and what it saved is read and goes on.
"""

import csv
import io
import json
from pathlib import Path

import numpy as np
import pytest

from sparsefront.__main__ import compare as main
from sparsefront.artifacts.content_digest import file_digest
from sparsefront.cache.inventory import read_results as read_runs
from sparsefront.errors import Obstacle
from sparsefront.results import store
from sparsefront.results.record import Result, record_digest
from sparsefront.results.store import append_result, parse_lines, read_results, write_result_json
from sparsefront.tasks.outcomes import Outcomes, save_outcomes

WRITER = """
import dataclasses, sys
from pathlib import Path
from sparsefront.results.record import Result
from sparsefront.results import store
from sparsefront.results.store import append_result
name, template, store, count = sys.argv[1:]
result = Result.from_json(Path(template).read_text())
for number in range(int(count)):
    identity = dataclasses.replace(result.identity, run_id=f"{name}-{number}")
    append_result(Path(store), dataclasses.replace(result, identity=identity))
"""


def test_line_with_control_outlives_newer_ones(tmp_path, make_result):
    store = tmp_path / "rows.csv"
    control = make_result(time="2026-01-01T00:00:00+00:00", dense_continued=0.99)
    newer = make_result(time="2026-01-02T00:00:00+00:00")
    append_result(store, control)
    append_result(store, make_result(run_id="torn"))
    store.write_bytes(store.read_bytes()[:-3])
    append_result(store, newer)
    assert read_results([store]).results == [control] and read_results([store]).problems == []
    newest = make_result(time="2026-01-03T00:00:00+00:00", dense_continued=0.98)
    append_result(store, newest)
    assert read_results([store]).results == [newest]


@pytest.mark.parametrize("mine", ["third", "first"], ids=["one line more", "the file anew"])
def test_sleeper_loses_no_line(tmp_path, make_result, monkeypatch, mine):
    """Others held the store meanwhile, and made the file anew: what this one has open, or has read, is an old one."""
    path, format_lines, slept = tmp_path / "rows.csv", store.format_lines, []
    append_result(path, make_result(run_id="first"))
    append_result(path, make_result(run_id="second"))

    def sleep_and_format(*arguments, **settings):
        if not slept:
            (held,) = tmp_path.glob(".rows.csv.leases/*")
            slept.append(held.unlink())
            append_result(path, make_result(run_id="second", time="2026-01-02T00:00:00+00:00"))
            append_result(path, make_result(run_id="other"))
        return format_lines(*arguments, **settings)

    monkeypatch.setattr(store, "format_lines", sleep_and_format)
    append_result(path, make_result(run_id=mine, time="2026-01-03T00:00:00+00:00"))
    assert slept and sorted(runs_of(path)) == sorted({"first", "second", "other", mine})


def lines_of(store: Path) -> list[dict[str, str]]:
    with store.open(newline="") as file:
        return list(csv.DictReader(file))


def runs_of(store: Path) -> list[str]:
    return [line["run_id"] for line in lines_of(store)]


def test_two_processes_lose_nothing(tmp_path, make_result, programs):
    template, store = write_result_json(tmp_path / "template.json", make_result()), tmp_path / "rows.csv"
    writers = [programs.start(["-c", WRITER, name, str(template), str(store), "50"]) for name in ("a", "b")]
    assert [writer.wait(600) for writer in writers] == [0, 0]
    assert read_results([store]).problems == []
    assert sorted(runs_of(store)) == sorted(f"{name}-{number}" for name in "ab" for number in range(50))


@pytest.mark.parametrize("kept_of_last_line", [1, 40, -3, -1], ids=["1", "40", "all but 3", "all but the line end"])
def test_half_a_line_is_dropped(tmp_path, make_result, caplog, kept_of_last_line):
    store = tmp_path / "rows.csv"
    append_result(store, make_result(run_id="whole"))
    whole = store.read_bytes()
    append_result(store, make_result(run_id="torn"))
    store.write_bytes(whole + store.read_bytes()[len(whole) :][:kept_of_last_line])
    assert [result.identity.run_id for result in read_results([store]).results] == ["whole"]
    assert f"{store}, last line: it is half a line" in read_results([store]).problems[0], "the file is read"
    append_result(store, make_result(run_id="next"))
    assert runs_of(store) == ["whole", "next"]
    assert "half a line" in caplog.text
    assert read_results([store]).problems == []


def test_broken_files_are_reported(tmp_path, make_result):
    write_result_json(tmp_path / "one" / "row.json", make_result(run_id="one"))
    write_result_json(tmp_path / "sweep" / "pattern=n_m" / "row.json", make_result(run_id="two"))
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "row.json").write_text('{"identity": {')
    append_result(tmp_path / "rows.csv", make_result(run_id="one"))
    reading = read_results([tmp_path, tmp_path / "nowhere", tmp_path / "one" / "row.json"])
    assert sorted(result.identity.run_id for result in reading.results) == ["one", "two"]
    assert len(reading.problems) == 2
    assert "broken" in reading.problems[0] and "nowhere" in reading.problems[1]


def sealed(result: Result) -> Result:
    """With its own digest, as a run writes it."""
    return result.with_values({"record_sha256": record_digest(json.loads(result.to_json()))})


def test_an_edited_result_is_left_out(tmp_path, make_result):
    values = {"recovery_epochs": 2.0, "recovery_steps": 0, "variant_medians_ms": {"dense/eager": 1.0}}
    result = sealed(make_result(run_id="sealed", **values))
    row, store = write_result_json(tmp_path / "run" / "row.json", result), tmp_path / "rows.csv"
    append_result(store, result)
    assert read_results([row]).results == read_results([store]).results == [result]
    for file in (row, store):
        text = file.read_text()
        assert "0.97" in text
        file.write_text(text.replace("0.97", "0.99"))
        reading = read_results([file])
        assert reading.results == [] and "run sealed was edited after it was stored" in reading.problems[0]


def test_outcomes_that_were_edited_prove_nothing(tmp_path, make_result):
    save_outcomes(tmp_path / "outcomes.npz", {"sparse": Outcomes("accuracy", np.ones(4, dtype=np.uint8), None, "dev")})
    stored = file_digest(tmp_path / "outcomes.npz")
    for digest, held in ((None, True), (stored, True), ("0" * 64, False)):
        result = make_result(outcomes_file="outcomes.npz", outcomes_sha256=digest)
        reading = read_results([write_result_json(tmp_path / "row.json", result)])
        assert (reading.outcomes_of(result) is not None) == held


def test_run_with_and_without_control(tmp_path, make_result):
    """Their run_id is the same: the page told the command and the folder of one for both."""
    results = {"a": make_result(dense_continued=0.9), "b": make_result(dense_continued=None)}
    for name, result in results.items():
        write_result_json(tmp_path / name / "row.json", result)
    reading = read_results([tmp_path])
    assert [reading.folder_of(result) for result in reading.results] == [tmp_path / "a", tmp_path / "b"]
    assert reading.finished == [tmp_path / "a", tmp_path / "b"]


@pytest.mark.parametrize("stores", [("whole", "rows"), ("rows", "whole")])
def test_copy_with_outcomes_counts(tmp_path, make_result, stores):
    result = make_result(outcomes_file="outcomes.npz")
    for name in stores:
        write_result_json(tmp_path / name / "row.json", result)
    outcomes = {"sparse": Outcomes("accuracy", np.ones(4, dtype=np.uint8), None, "dev")}
    save_outcomes(tmp_path / "whole" / "outcomes.npz", outcomes)
    reading = read_results([tmp_path / name for name in stores])
    assert reading.results == [result] and reading.folder_of(result) == tmp_path / "whole"
    assert reading.outcomes_of(result) is not None


@pytest.fixture
def study(tmp_path, make_result):
    """A folder of three runs with the rows.csv that they wrote."""
    for number in range(3):
        result = make_result(run_id=f"run-{number}", seed=number, time=f"2026-01-0{number + 1}T00:00:00+00:00")
        write_result_json(tmp_path / "study" / str(number) / "row.json", result)
        append_result(tmp_path / "study" / "rows.csv", result)
    return tmp_path / "study"


def test_corrupt_row_is_named(study, capsys):
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


def test_unreadable_lines_of_merged_files(study, make_result, tmp_path, capsys):
    """One edited, one of a newer version with its columns, and one edited whose row.json is there."""
    store = tmp_path / "all.csv"
    for run_id in ("edited", "newer", "run-1"):
        append_result(store, make_result(run_id=run_id))
    edited = {"speedup": "9.0", "record_sha256": "0" * 64}
    newer = {"schema_version": "99", "brand_new": "kept"}
    lines = [line | (newer if line["run_id"] == "newer" else edited) for line in lines_of(store)]
    with store.open("w", newline="") as file:
        writer = csv.DictWriter(file, [*lines[0], "brand_new"])
        writer.writeheader()
        writer.writerows(lines)
    assert main(["--rebuild", str(study), f"store={store}"]) == 0
    assert runs_of(store) == ["run-0", "run-1", "run-2", "edited", "newer"]
    assert [line["brand_new"] for line in lines_of(store)] == ["", "", "", "", "kept"]
    assert "3 runs, and 2 lines kept that cannot be read" in capsys.readouterr().out


@pytest.mark.parametrize("text", ["name,price\napple,1\n", "one line without an end", '{"identity": {}}\n'])
def test_foreign_table_is_not_overwritten(study, tmp_path, capsys, text):
    mine = tmp_path / "mine.csv"
    for path, arguments in ((mine, [f"store={mine}"]), (study / "rows.csv", [])):
        path.write_text(text)
        assert main(["--rebuild", str(study), *arguments]) == 1
        assert f"{path}: is not overwritten: no table of results" in capsys.readouterr().err
        assert path.read_text() == text


def test_what_rebuild_refuses(study, tmp_path, capsys):
    record, empty = study / "0" / "row.json", tmp_path / "empty"
    before = record.read_text()
    empty.mkdir()
    assert main(["--rebuild", str(study), f"store={record}"]) == main(["--rebuild", str(empty)]) == 1
    said = capsys.readouterr().err
    assert "row.json: must end in .csv" in said and "holds no row.json to make rows.csv from" in said
    assert record.read_text() == before


def test_several_processes_read_what_one_reads(study, monkeypatch):
    monkeypatch.setattr("sparsefront.results.store.FILES_FOR_PROCESSES", 2)
    (study / "1" / "row.json").write_text("{")
    one, two = read_results([study]), read_results([study], processes=2)
    assert (one.results, one.problems, one.places) == (two.results, two.problems, two.places)


def saved(
    content: bytes, *, mark: str = "", separator: str = ",", encoding: str = "utf-8", ends: str = "\r\n"
) -> bytes:
    """The table as a spreadsheet saves it, which writes True in capitals, too."""
    rows = list(csv.reader(io.StringIO(content.decode(), newline="")))
    text = io.StringIO(newline="")
    writer = csv.writer(text, delimiter=separator, lineterminator=ends)
    writer.writerows([cell.upper() if cell in ("True", "False") else cell for cell in row] for row in rows)
    return (mark + text.getvalue()).encode(encoding)


FORMS = {
    "mark": {"mark": "\ufeff"},
    "semicolons": {"separator": ";"},
    "semicolons and mark": {"separator": ";", "mark": "\ufeff"},
    "tabs": {"separator": "\t", "ends": "\n"},
    "UTF-16": {"encoding": "utf-16", "separator": "\t"},
    "UTF-16 with commas": {"encoding": "utf-16"},
}


@pytest.mark.parametrize("form", FORMS)
def test_spreadsheet_goes_on(tmp_path, make_result, form):
    """A line that was appended to it as it is made every line unreadable, the old ones included."""
    store = tmp_path / "rows.csv"
    known = [make_result(run_id=name, model='größer, "so"\n=1;\t\'x') for name in ("a", "b")]
    for result in known:
        append_result(store, result)
    store.write_bytes(saved(store.read_bytes(), **FORMS[form]))
    assert read_results([store]).results == known and read_results([store]).problems == []
    assert [run.run_id for run in read_runs([tmp_path]).runs] == ["a", "b"]
    append_result(store, make_result(run_id="c"))
    assert store.read_bytes().startswith(b"run_id,time,"), "commas, and no mark"
    reading = read_results([store])
    assert [one.identity.run_id for one in reading.results] == ["a", "b", "c"] and reading.problems == []
    assert reading.results[:2] == known


def test_columns_that_were_added_stay(tmp_path, make_result):
    store, result = tmp_path / "rows.csv", make_result(run_id="a")
    signed = sealed(result)
    append_result(store, signed)
    head, line = store.read_text(encoding="utf-8").splitlines()
    for note in (("my note,", "good,", "my note, remark"), ("", "", "remark")):
        store.write_text(f"{note[0]}{head},remark\r\n{note[1]}{line},ours\r\n", encoding="utf-8", newline="")
        append_result(store, make_result(run_id="b"))
        lines = list(parse_lines(store.read_text(encoding="utf-8"))[1])
        assert [line["run_id"] for line in lines] == ["a", "b"] and [line["remark"] for line in lines] == ["ours", ""]
        reading = read_results([store])
        assert [one.identity.run_id for one in reading.results] == ["a", "b"] and reading.results[0] == signed
        assert reading.problems == [f"{store}: cells under {note[2]}, which is no field of a result"]


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("run_id,time\n".encode("utf-16")[:-1], "is UTF-16 text that is cut off"),
        (b"name;price\napple;1\n", "no table of results, since it has no column run_id, time, config_hash"),
        (bytes(range(256)) * 40, "no table of results"),
        (b"half a line", "no table of results"),
        (None, "is a folder, not a file"),
    ],
)
def test_file_that_is_no_table(tmp_path, make_result, content, why):
    store = tmp_path / "rows.csv"
    store.mkdir() if content is None else store.write_bytes(content)
    with pytest.raises(Obstacle) as raised:
        append_result(store, make_result())
    assert str(raised.value).startswith(f"{store}: {why}")
    assert str(raised.value).endswith(
        f"move it away; python compare.py --rebuild {tmp_path} makes it anew from each row.json"
    )
    assert "\n" not in str(raised.value)
    assert store.is_dir() if content is None else store.read_bytes() == content


def test_formulas_in_a_result_come_back(tmp_path, make_result):
    result = make_result(run_id="=1", model="@x", recovery="-none", importance="'=y", dataset="'plain")
    other = make_result(run_id="b")
    for one in (result, other, result):
        append_result(tmp_path / "rows.csv", one)
    assert read_results([tmp_path / "rows.csv"]).results == [other, result]
    assert "'=1," in (tmp_path / "rows.csv").read_text() and ",'plain," in (tmp_path / "rows.csv").read_text()
