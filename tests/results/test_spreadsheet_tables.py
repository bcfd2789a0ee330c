"""A table of results that a spreadsheet opened: nothing in it is calculated, and what it saved is read and goes on."""

import csv
import io
import json

import pytest

from sparsefront.cache.inventory import read_results as read_runs
from sparsefront.errors import Obstacle
from sparsefront.results.record import record_digest
from sparsefront.results.store import (
    append_result,
    parse_lines,
    read_results,
)


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
def test_what_a_spreadsheet_saved_is_read_and_goes_on_in_our_form(tmp_path, make_result, form):
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
    signed = result.with_values({"record_sha256": record_digest(json.loads(result.to_json()))})
    append_result(store, signed)
    head, line = store.read_text(encoding="utf-8").splitlines()
    for note in (("my note,", "good,", "my note, remark"), ("", "", "remark")):
        store.write_text(f"{note[0]}{head},remark\r\n{note[1]}{line},ours\r\n", encoding="utf-8", newline="")
        append_result(store, make_result(run_id="b"))
        header, lines = parse_lines(store.read_text(encoding="utf-8"))
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
def test_what_is_no_table_stays_as_it_is(tmp_path, make_result, content, why):
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


def test_an_edited_line_with_added_columns_is_not_read(tmp_path, make_result):
    store, result = tmp_path / "rows.csv", make_result(run_id="a")
    for digest in ("0" * 64, None):
        store.unlink(missing_ok=True)
        append_result(store, result.with_values({"record_sha256": digest}))
        head, line = store.read_text(encoding="utf-8").splitlines()
        store.write_text(f"{head},remark\n{line},ours\n", encoding="utf-8")
        reading = read_results([store])
        assert reading.results == [] and "unknown remark" in reading.problems[0]
