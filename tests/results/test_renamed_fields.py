"""Results of earlier versions are read under today's field names, from JSON and from CSV, and nothing of them is lost."""

import csv
import json
from pathlib import Path

import pytest

from sparsefront.results.record import (
    RENAMED_FIELDS,
    RENAMED_INSIDE,
    RENAMED_PER_ENTRY,
    Result,
    new_name,
    result_fields,
)
from sparsefront.results.store import append_result, read_results

RECORDED = Path(__file__).with_name("recorded_results.csv")  # of an earlier version, with the column `kernel`


def with_old_names(result: Result) -> dict:
    """The content of a result as schema 4 wrote it."""
    content = json.loads(result.to_json())
    content["identity"]["schema_version"] = 4
    for old, new in RENAMED_FIELDS.items():
        group, name = new.split(".")
        content[group][old.partition(".")[2]] = content[group].pop(name)
    for field, keys in RENAMED_INSIDE.items():
        group, name = field.split(".")
        content[group][name] = {
            {new: old for old, new in keys.items()}.get(k, k): v for k, v in content[group][name].items()
        }
    for layer in content["kernels"]["kernel_per_layer"].values():
        layer["refusals"] = layer.pop("unsupported")
    return content


@pytest.fixture
def result(make_result) -> Result:
    return make_result(
        schema_version=4,
        sparse_standard_error=0.01,
        extra_metrics={"dense": {"f1": 0.5}, "sparse": {"f1": 0.4}},
        recipe_parameters={"epochs": 3, "ignore": ["head"], "save_epoch_weights": True},
        trainer_parameters={"devices": 1, "accumulate_grad_batches": 2},
    )


def test_json_of_an_earlier_version(result):
    content = with_old_names(result)
    assert "kernel" in content["quality"] and "wrapping_refusals" in content["speed"]
    assert Result.from_json(json.dumps(content)) == result
    assert Result.from_json(result.to_json()) == result, "what has present names is unchanged"


def test_a_csv_line_of_an_earlier_version_and_a_new_one_in_the_same_file(tmp_path, result, make_result):
    content = with_old_names(result)
    cells = {name: value for group in content.values() for name, value in group.items()}
    cells = {name: json.dumps(v) if isinstance(v, dict | list) else "" if v is None else v for name, v in cells.items()}
    with (tmp_path / "rows.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, cells)
        writer.writeheader()
        writer.writerow(cells)
    assert read_results([tmp_path]).results == [result]
    append_result(tmp_path / "rows.csv", newer := make_result(run_id="newer"))
    reading = read_results([tmp_path])
    assert reading.problems == [] and reading.results == [result, newer]


def test_a_name_that_never_was_is_still_unknown(result):
    content = with_old_names(result)
    content["quality"]["kernels"] = 0.5
    with pytest.raises(ValueError, match=r"unknown quality\.kernels$"):
        Result.from_json(json.dumps(content))


def test_the_recorded_table_is_read_with_every_accuracy():
    reading = read_results([RECORDED])
    assert reading.problems == [] and reading.results
    with RECORDED.open(newline="") as file:
        recorded = [float(line["kernel"]) if line["kernel"] else None for line in csv.DictReader(file)]
    assert [result.quality.sparse for result in reading.results] == recorded
    layers = [layer for result in reading.results for layer in result.kernels.kernel_per_layer.values()]
    assert not any("refusals" in layer for layer in layers) and any("unsupported" in layer for layer in layers)


def test_every_new_name_is_a_field():
    fields = {f"{field.group}.{field.name}" for field in result_fields()}
    assert {*RENAMED_FIELDS.values(), *RENAMED_INSIDE, *RENAMED_PER_ENTRY} <= fields
    assert not fields & RENAMED_FIELDS.keys()
    assert new_name("kernel") == "sparse" and new_name("speedup") is None
    assert all(new_name(field.name) is None for field in result_fields())
