"""Results on disk: nothing lost with two writers, columns that grow, half lines repaired, broken files reported."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from sparsefront.artifacts.content_digest import file_digest
from sparsefront.results import store
from sparsefront.results.record import record_digest
from sparsefront.results.store import append_result, read_results, write_result_json
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


def test_a_line_with_the_control_outlives_a_newer_one_without(tmp_path, make_result):
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
def test_one_that_slept_while_it_added_its_line_loses_neither_that_nor_those_of_others(
    tmp_path, make_result, monkeypatch, mine
):
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
    assert slept and sorted(line["run_id"] for line in lines_of(path)) == sorted({"first", "second", "other", mine})


def lines_of(store: Path) -> list[dict[str, str]]:
    with store.open(newline="") as file:
        return list(csv.DictReader(file))


def test_results_that_are_linked_into_one_folder_are_found(tmp_path, make_result):
    """Those of two machines, one of them not mounted: nothing was found, without a word."""
    for name in ("one", "two"):
        write_result_json(tmp_path / name / "results" / "run" / "row.json", make_result(run_id=name))
    together = tmp_path / "together"
    together.mkdir()
    for name in ("one", "two", "three"):
        (together / name).symlink_to(tmp_path / name / "results")
    (together / "checkpoint").symlink_to(tmp_path / "removed")
    reading = read_results([together])
    assert [result.identity.run_id for result in reading.results] == ["one", "two"]
    assert reading.problems == [f"{together / 'three'}: a link that leads nowhere"]
    assert reading.folder_of(reading.results[0]) == together / "one" / "run"


def test_two_processes_lose_nothing(tmp_path, make_result, programs):
    template = write_result_json(tmp_path / "template.json", make_result())
    store = tmp_path / "rows.csv"
    writers = [programs.start(["-c", WRITER, name, str(template), str(store), "50"]) for name in ("a", "b")]
    assert [writer.wait(600) for writer in writers] == [0, 0]
    reading = read_results([store])
    assert reading.problems == []
    assert {result.identity.run_id for result in reading.results} == {
        f"{name}-{number}" for name in "ab" for number in range(50)
    }


def test_a_new_column_keeps_the_old_lines(tmp_path, make_result):
    store = tmp_path / "rows.csv"
    old = make_result(run_id="old").flat()
    del old["sparse_flops_share"]
    with store.open("w", newline="") as file:
        writer = csv.DictWriter(file, [*old, "added_by_hand"])
        writer.writeheader()
        writer.writerow(old | {"added_by_hand": "keep me"})
    append_result(store, make_result(run_id="new"))
    first, second = lines_of(store)
    assert first["run_id"] == "old" and first["added_by_hand"] == "keep me" and first["sparse_flops_share"] == ""
    assert second["run_id"] == "new" and second["sparse_flops_share"] == "0.5"


@pytest.mark.parametrize("kept_of_last_line", [1, 40, -3, -1], ids=["1", "40", "all but 3", "all but the line end"])
def test_half_a_line_is_dropped_and_the_rest_kept(tmp_path, make_result, caplog, kept_of_last_line):
    store = tmp_path / "rows.csv"
    append_result(store, make_result(run_id="whole"))
    whole = store.read_bytes()
    append_result(store, make_result(run_id="torn"))
    store.write_bytes(whole + store.read_bytes()[len(whole) :][:kept_of_last_line])
    assert [result.identity.run_id for result in read_results([store]).results] == ["whole"]
    assert f"{store}, last line: it is half a line" in read_results([store]).problems[0], "the file is read"
    append_result(store, make_result(run_id="next"))
    assert [line["run_id"] for line in lines_of(store)] == ["whole", "next"]
    assert "half a line" in caplog.text
    assert read_results([store]).problems == []


def test_a_run_has_one_line_and_the_newest_wins(tmp_path, make_result):
    store = tmp_path / "rows.csv"
    for run_id, speedup in (("a", 1.0), ("b", 1.0), ("a", 2.0)):
        append_result(store, make_result(run_id=run_id, speedup=speedup))
    assert [(line["run_id"], line["speedup"]) for line in lines_of(store)] == [("b", "1.0"), ("a", "2.0")]


def test_folders_are_searched_and_broken_files_reported(tmp_path, make_result):
    write_result_json(tmp_path / "one" / "row.json", make_result(run_id="one"))
    write_result_json(tmp_path / "sweep" / "pattern=n_m" / "row.json", make_result(run_id="two"))
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "row.json").write_text('{"identity": {')
    append_result(tmp_path / "rows.csv", make_result(run_id="one"))
    reading = read_results([tmp_path, tmp_path / "nowhere", tmp_path / "one" / "row.json"])
    assert sorted(result.identity.run_id for result in reading.results) == ["one", "two"]
    assert len(reading.problems) == 2
    assert "broken" in reading.problems[0] and "nowhere" in reading.problems[1]


@pytest.fixture
def sealed(make_result):
    """A result with its own digest, as a run writes it."""
    result = make_result(
        run_id="sealed", recovery_epochs=2.0, recovery_steps=0, variant_medians_ms={"dense/eager": 1.0}
    )
    return result.with_values({"record_sha256": record_digest(json.loads(result.to_json()))})


def test_a_result_that_was_edited_is_left_out_and_named(tmp_path, sealed):
    row, store = write_result_json(tmp_path / "run" / "row.json", sealed), tmp_path / "rows.csv"
    append_result(store, sealed)
    assert read_results([row]).results == read_results([store]).results == [sealed]
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


def test_a_run_with_and_without_the_control_has_two_folders(tmp_path, make_result):
    """Their run_id is the same: the page told the command and the folder of one for both."""
    results = {"a": make_result(dense_continued=0.9), "b": make_result(dense_continued=None)}
    for name, result in results.items():
        write_result_json(tmp_path / name / "row.json", result)
    reading = read_results([tmp_path])
    assert [reading.folder_of(result) for result in reading.results] == [tmp_path / "a", tmp_path / "b"]
    assert reading.finished == [tmp_path / "a", tmp_path / "b"]


@pytest.mark.parametrize("stores", [("whole", "rows"), ("rows", "whole")])
def test_of_several_copies_the_one_with_outcomes_counts(tmp_path, make_result, stores):
    result = make_result(outcomes_file="outcomes.npz")
    for name in stores:
        write_result_json(tmp_path / name / "row.json", result)
    outcomes = {"sparse": Outcomes("accuracy", np.ones(4, dtype=np.uint8), None, "dev")}
    save_outcomes(tmp_path / "whole" / "outcomes.npz", outcomes)
    reading = read_results([tmp_path / name for name in stores])
    assert reading.results == [result] and reading.folder_of(result) == tmp_path / "whole"
    assert reading.outcomes_of(result) is not None
