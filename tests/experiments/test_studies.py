"""The pages of the studies show what their published rows say, and each cell is a point of a sweep."""

import shutil
from pathlib import Path

import pytest
import yaml
from quick_compositions import composition

from experiments.harness.rows import read_lines
from experiments.studies import study, table
from experiments.studies.study import EXPERIMENTS, Study, points, rows_of
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


@pytest.mark.parametrize("name", MEASURED)
def test_figure_is_as_published(name, tmp_path):
    drawn = table.draw(table.tabulate_seeds(Study.read(name)), tmp_path / table.PLOT)
    assert drawn == (EXPERIMENTS / name / table.PLOT).exists()


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


def test_headlines_come_first_with_further_seeds():
    found = list(Study.read("nmsparse_bert").points())
    headlines = [(cell.headline, seed) for cell, seed in found]
    assert headlines == sorted(headlines, key=lambda one: (one[1], not one[0])) and (True, 2) in headlines
    assert not any(cell.network == "mrpc" and not cell.headline for cell, _ in found)
    found = points(Study.read("uniform_mt"), "transformer_multi30k", seeds=[1], only=["uniform · 70"])
    assert len(found) == 1 and found[0][-4:] == ["recovery.seed=1", *study.OF_UNTIMED]
    (timed,) = points(Study.read("pytorch_talk"), "vit_small_digits", seeds=[1], only=["32 · 90"], timed=True)
    assert timed[-2:] == study.networks()["vit_small_digits"]["latency"] and "kernel=none" not in timed


FILES = {"front/squad": "front_squad", "front/searches": "front_squad", "front/lines": "front_imdb"}
FILES |= {"low_precision/networks": "front_squad", "search/minilm": "search_minilm", "sweeps/minilm": "bert_sst2"}


@pytest.mark.parametrize("name", FILES)
def test_points_of_a_file_compose(name):
    for point in read_points(EXPERIMENTS / f"{name}.yaml"):
        config = composition(tuple(normalize_arguments([f"experiment={FILES[name]}", *point])))
        for group in GROUPS:
            build_settings(group, config[group])


def test_rows_are_the_published_ones(tmp_path, monkeypatch):
    published = {line["run_id"]: line for line in read_lines(Study.read("uniform_mt").points_file)}
    monkeypatch.setattr(Study, "points_file", tmp_path / "none.csv")
    found = list(rows_of(Study.read("uniform_mt"), [EXPERIMENTS / "records" / "uniform_mt"]))
    assert len(found) == 3
    for line in found:
        of_run = published[line["run_id"]]
        assert {name: str(line[name]) for name in (*study.IDENTITY, "masked", "kernel")} == {
            name: of_run[name] for name in (*study.IDENTITY, "masked", "kernel")
        }


def test_row_of_other_settings(tmp_path):
    of_study, file = Study.read("uniform_mt"), tmp_path / "points.csv"
    shutil.copy(of_study.points_file, file)
    file.write_text(Path(file).read_text().replace("sparsity=0.7", "sparsity=0.71"))
    found = [one.cell.column for one in table.tabulate_seeds(of_study, file) if one.of_seed]
    assert found == ["50 %"]


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
