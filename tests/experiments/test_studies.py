"""The pages of the studies show what their published rows say, and each cell is a point of a sweep."""

import pytest
import yaml
from quick_compositions import composition

from experiments.studies import table
from experiments.studies.study import EXPERIMENTS, Study, points
from sparsefront.config.arguments import normalize_arguments
from sparsefront.config.settings import build_settings
from sparsefront.points import read_points

NAMES = sorted(file.parent.name for file in EXPERIMENTS.glob("*/study.yaml"))
GROUPS = ("pattern", "importance", "allocation", "schedule", "recovery", "recipe")
MEASURED = [name for name in NAMES if (EXPERIMENTS / name / "points.csv").exists()]


@pytest.mark.parametrize("name", MEASURED)
def test_page_shows_the_published_rows(name):
    of_study = Study.read(name)
    page = (EXPERIMENTS / name / "README.md").read_text()
    text = "\n".join(table.tables(of_study, table.tabulate_seeds(of_study)))
    assert text.strip() == page.partition(table.MARKS[0])[2].partition(table.MARKS[1])[0].strip()


@pytest.mark.parametrize("name", NAMES)
def test_points_are_those_of_a_sweep(name, tmp_path, monkeypatch):
    monkeypatch.setattr(Study, "points_file", tmp_path / "none.csv")
    of_study, file, seen = Study.read(name), tmp_path / "points.yaml", set()
    for network in of_study.networks:
        found = points(of_study, network)
        file.write_text(yaml.safe_dump(found))
        assert read_points(file) == found
        for cell in of_study.cells:  # columns differ in the sparsity alone, and of further networks one point is enough
            key = (cell.table, cell.row) if network == of_study.networks[0] else ()
            if cell.network == network and (network, *key) not in seen:
                seen.add((network, *key))
                config = composition(tuple(normalize_arguments([*cell.own, "kernel=none"])))
                for group in ("model", "dataset", *GROUPS):
                    build_settings(group, config[group])


@pytest.mark.parametrize(
    ("curve", "sparsity"),
    [
        ([(50, 0.0), (70, 2.0)], (60, "")),
        ([(50, 1.5), (70, 2.0)], (50, "below")),
        ([(50, 0.0), (70, 0.5)], (70, "above")),
    ],
)
def test_crossing_is_interpolated_between_levels(curve, sparsity):
    assert table._passed(curve, 1.0) == sparsity
