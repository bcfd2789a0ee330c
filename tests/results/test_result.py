"""The result: unique field names, exact round trips, and wrong content rejected by name."""

import dataclasses
import json
from collections import Counter

import pytest

from sparsefront.results.record import ENERGY, SCHEMA_VERSION, Result, Speed, result_fields


def test_field_names_are_unique():
    names = [field.name for field in result_fields()] + [group.name for group in dataclasses.fields(Result)]
    assert [name for name, count in Counter(names).items() if count > 1] == []


@pytest.mark.parametrize("granularity", [128, "4x64", None])
def test_flat_round_trip_through_text(make_result, granularity):
    result = make_result(granularity=granularity, latency_sparse_ms=None, speedup=0.1 + 0.2, dense_reused=False)
    cells = {name: "" if value is None else str(value) for name, value in result.flat().items()}
    assert Result.from_flat(cells) == result


def test_missing_column_reads_as_unmeasured(make_result):
    cells = {name: "" if value is None else str(value) for name, value in make_result().flat().items()}
    del cells["speedup"], cells["dense_layers"]
    result = Result.from_flat(cells)
    assert result.speed.speedup is None and result.sparsity.dense_layers == {}


def test_unknown_and_missing_keys(make_result):
    content = json.loads(make_result().to_json())
    content["speed"]["latency_guess_ms"] = 1.0
    content["mood"] = {}
    del content["quality"]["dense"], content["cost"]["prune_seconds"]
    with pytest.raises(ValueError) as error:
        Result.from_json(json.dumps(content))
    for key in ("speed.latency_guess_ms", "mood", "quality.dense", "cost.prune_seconds"):
        assert key in str(error.value)


def test_record_may_lack_energy(make_result):
    content = json.loads(make_result().to_json())
    for name in ENERGY:
        del content["cost"][name]
    assert Result.from_json(json.dumps(content)) == make_result()


@pytest.mark.parametrize("text", ["[]", "{}", '{"identity": 3}', "no json"])
def test_other_files_are_no_results(text):
    with pytest.raises(ValueError):
        Result.from_json(text)


@pytest.mark.parametrize("version", [SCHEMA_VERSION - 1, SCHEMA_VERSION + 1])
def test_another_schema_version_is_rejected(make_result, version):
    content = json.loads(make_result().to_json())
    content["identity"]["schema_version"] = version
    with pytest.raises(ValueError, match=f"schema version {version}"):
        Result.from_json(json.dumps(content))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("speedup", float("nan")),
        ("speedup", float("inf")),
        ("speedup", "1.5"),
        ("speedup", True),
        ("batch_size", 2.5),
        ("latency_device", 3),
        ("variants_not_timed", {"compile": float("nan")}),
        ("variants_not_timed", {"compile": object()}),
        ("variants_not_timed", None),
    ],
)
def test_wrong_value_where_passed(field, value):
    with pytest.raises(ValueError, match=f"speed.{field}"):
        Speed(**{field: value})
