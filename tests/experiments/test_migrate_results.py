"""The script that brings recorded tables to the field names of today."""

import csv
import importlib.util
import json
from pathlib import Path

import pytest

EXPERIMENTS = Path(__file__).parents[2] / "experiments"


@pytest.fixture
def script():
    spec = importlib.util.spec_from_file_location("migrate_results", EXPERIMENTS / "migrate_results.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_cells_change_and_columns_stay(script, tmp_path):
    table = tmp_path / "rows.csv"
    layer = {"fc1": {"chosen": "dense_linear", "refusals": {"csr_torch": 'why, "so"'}}}
    cells = {
        "run_id": "a",
        "kernel": "0.5",
        "extra_metrics": json.dumps({"dense": {"f1": 1.0}, "kernel": {"f1": 0.5}}),
        "kernel_per_layer": json.dumps(layer),
        "trainer_parameters": json.dumps({"accumulate": 2}),
        "recipe_parameters": "",
    }
    with table.open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([list(cells), list(cells.values())])
    assert script.migrate(table) == 3
    once = table.read_bytes()
    (line,) = csv.DictReader(table.open(newline=""))
    assert list(line) == list(cells) and (line["run_id"], line["kernel"], line["recipe_parameters"]) == ("a", "0.5", "")
    assert json.loads(line["extra_metrics"]) == {"dense": {"f1": 1.0}, "sparse": {"f1": 0.5}}
    assert json.loads(line["kernel_per_layer"])["fc1"]["unsupported"] == {"csr_torch": 'why, "so"'}
    assert json.loads(line["trainer_parameters"]) == {"accumulate_grad_batches": 2}
    assert script.migrate(table) == 0 and table.read_bytes() == once


@pytest.mark.parametrize("table", sorted(EXPERIMENTS.glob("*/rows.csv")), ids=lambda path: path.parent.name)
def test_committed_tables_have_todays_names(script, table, tmp_path):
    copy = tmp_path / "rows.csv"
    copy.write_bytes(table.read_bytes())
    assert script.migrate(copy) == 0
