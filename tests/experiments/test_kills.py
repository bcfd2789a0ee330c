"""The page of experiments/sweeps shows what kills.json holds."""

import json
from pathlib import Path

import pytest

from experiments.harness import page

FOLDER = Path(__file__).resolve().parents[2] / "experiments" / "sweeps"


@pytest.fixture
def recorded() -> dict:
    return json.loads((FOLDER / "kills.json").read_text())


def test_page_of_the_record(modules, tmp_path, recorded):
    file, before = tmp_path / "README.md", (FOLDER / "README.md").read_text()
    file.write_text(before)
    kills = modules["kills"]
    page.fill(file, kills.MARKS, "\n".join(kills.table(recorded)))
    assert file.read_text() == before
