"""The row: unique leaf names, exact round trips, and wrong content refused by name."""

import dataclasses
import json
from collections import Counter

import pytest

from sparsefront.report.row import Row, leaves
from sparsefront.report.row_groups import SCHEMA_VERSION, Speed


def test_leaf_names_are_unique_over_the_whole_row():
    names = [leaf.name for leaf in leaves()] + [group.name for group in dataclasses.fields(Row)]
    assert [name for name, count in Counter(names).items() if count > 1] == []


def test_the_leaves_that_tables_promise_exist():
    promised = "dense masked kernel seed latency_dense_ms latency_sparse_ms speedup latency_device metric_name".split()
    assert set(promised) <= {leaf.name for leaf in leaves()}


def test_json_round_trip(make_row):
    row = make_row()
    assert Row.from_json(row.to_json()) == row


@pytest.mark.parametrize("granularity", [128, "4x64", None])
def test_flat_round_trip_through_text(make_row, granularity):
    row = make_row(granularity=granularity, latency_sparse_ms=None, speedup=0.1 + 0.2, dense_reused=False)
    cells = {name: "" if value is None else str(value) for name, value in row.flat().items()}
    assert Row.from_flat(cells) == row


def test_flat_has_every_leaf_once_and_mappings_as_json(make_row):
    flat = make_row().flat()
    assert list(flat) == [leaf.name for leaf in leaves()]
    assert json.loads(flat["sparsity_per_layer"]) == {"block.0.fc1": 0.8, "block.0.fc2": 0.0}


def test_a_column_that_an_old_store_lacks_reads_as_not_measured(make_row):
    cells = {name: "" if value is None else str(value) for name, value in make_row().flat().items()}
    del cells["speedup"], cells["dense_layers"]
    row = Row.from_flat(cells)
    assert row.speed.speedup is None and row.sparsity.dense_layers == {}


def test_unknown_and_missing_keys_are_all_named(make_row):
    content = json.loads(make_row().to_json())
    content["speed"]["latency_guess_ms"] = 1.0
    content["mood"] = {}
    del content["quality"]["dense"], content["cost"]
    with pytest.raises(ValueError) as error:
        Row.from_json(json.dumps(content))
    for key in ("speed.latency_guess_ms", "mood", "quality.dense", "cost.prune_seconds"):
        assert key in str(error.value)


@pytest.mark.parametrize("text", ["[]", "{}", '{"identity": 3}', "no json"])
def test_other_files_are_no_rows(text):
    with pytest.raises(ValueError):
        Row.from_json(text)


def test_another_schema_version_is_refused(make_row):
    content = json.loads(make_row().to_json())
    content["identity"]["schema_version"] = SCHEMA_VERSION + 1
    with pytest.raises(ValueError, match=f"schema version {SCHEMA_VERSION + 1}"):
        Row.from_json(json.dumps(content))


def test_a_row_of_an_older_version_is_read_and_stays_one(make_row):
    row = make_row(schema_version=1, recovery_parameters={})
    content, cells = json.loads(row.to_json()), {key: "" if v is None else str(v) for key, v in row.flat().items()}
    del content["choice"]["recovery_parameters"], cells["recovery_parameters"]
    assert Row.from_json(json.dumps(content)) == Row.from_flat(cells) == row
    del content["identity"]["run_id"]
    with pytest.raises(ValueError, match="missing identity.run_id"):
        Row.from_json(json.dumps(content))


@pytest.mark.parametrize(
    ("leaf", "value"),
    [
        ("speedup", float("nan")),
        ("speedup", float("inf")),
        ("speedup", "1.5"),
        ("speedup", True),
        ("batch_size", 2.5),
        ("latency_device", 3),
        ("wrapping_refusals", {"compile": float("nan")}),
        ("wrapping_refusals", {"compile": object()}),
        ("wrapping_refusals", None),
    ],
)
def test_a_wrong_value_is_refused_where_it_is_passed_in(leaf, value):
    with pytest.raises(ValueError, match=f"speed.{leaf}"):
        Speed(**{leaf: value})


def test_leaf_by_name(make_row):
    assert make_row().leaf("speedup") == 1.5
    with pytest.raises(KeyError):
        make_row().leaf("speed")
