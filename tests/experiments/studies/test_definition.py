"""Studies as they are declared: whole, buildable, headlines first."""

from dataclasses import replace

import pytest
from made_study import FOLDER, ON_CPU, ROOT, STUDIES
from quick_compositions import composition

from sparsefront.config.arguments import normalize_arguments
from sparsefront.config.settings import build_settings
from sparsefront.config.validate import validate
from sparsefront.runs import configured


def test_the_folders_hold_eight_studies_and_the_rerun_of_complaints():
    tiles, uniform = ["tile_wise_bert", "tile_wise_nmt", "tile_wise_vgg"], ["uniform", "uniform_mt"]
    assert STUDIES == ["nmsparse_bert", "pytorch_talk", "recoveries", *tiles, *uniform]
    assert (FOLDER.parent / "complaints" / "rerun.py").exists()


@pytest.mark.parametrize("name", STUDIES)
def test_a_study_is_whole(modules, name):
    """Its networks are known, its headlines are columns, and a source's numbers fit the columns."""
    definition = modules["definition"]
    study = definition.read_study(name)
    assert set(study.networks) <= definition.networks().keys()
    for table in study.tables:
        assert set(table.networks) <= set(study.networks)
        for row in table.rows.values():
            assert set(row.headline) <= table.columns.keys() and len(row.paper) <= len(table.columns)
            assert not row.paper or table.paper, "numbers without what they are of"
    points = list(definition.points(study))
    assert len(set(points)) == len(points) and any(point.turn == 0 for point in points)
    columns = {point.column for point in points}
    assert all(targets.keys() <= columns for targets in study.targets.values())


@pytest.mark.parametrize("name", STUDIES)
def test_the_settings_of_every_point_can_be_built(modules, name):
    definition = modules["definition"]
    study = definition.read_study(name)
    seen = set()
    for point in definition.points(study, seeds=[0]):
        key = (point.table, point.row) if point.network == study.networks[0] else point.network
        if key in seen:  # columns differ in the sparsity alone, and of further networks one point is enough
            continue
        seen.add(key)
        config = composition(tuple(normalize_arguments([*point.overrides, "kernel=none"])))
        assert config.control == "dense_continued"
        for group in ("model", "dataset", "pattern", "importance", "allocation", "schedule", "recovery", "recipe"):
            build_settings(group, config[group])


def test_points_that_need_no_data_are_valid(modules, tmp_path):
    definition = modules["definition"]
    study = definition.read_study("pytorch_talk")
    for point in definition.points(study, of=["vit_small_digits"], seeds=[0]):
        more = [
            *ON_CPU,
            "kernel=none",
            "measure.latency=false",
            f"results_dir={tmp_path}",
            f"cache_dir={tmp_path}/cache",
        ]
        with configured([*point.overrides, *more], ROOT / "conf") as (config, _):
            assert not validate(config).swaps


def test_headlines_come_first_and_alone_have_further_seeds(modules, study):
    found = list(modules["definition"].points(study))
    assert len(found) == 6 + 1
    by_turn = sorted(found, key=lambda point: point.turn)
    assert [(point.row, point.column, point.seed) for point in by_turn][::6] == [("EW", "50 %", 0), ("EW", "50 %", 1)]
    assert [point.seed for point in modules["definition"].points(study, seeds=[1])] == [1]


def test_a_network_may_have_headlines_only(modules, study):
    both = replace(study, networks=(*study.networks, "sst2"), headlines_only=("sst2",))
    found = [point for point in modules["definition"].points(both) if point.network == "sst2"]
    assert [(point.row, point.column, point.seed) for point in found] == [("EW", "50 %", 0), ("EW", "50 %", 1)]
    assert len(list(modules["definition"].points(both))) == 6 + 1 + 2


def test_recoveries_with_other_seeds_share_a_dense_network(modules, study):
    definition = modules["definition"]
    one = replace(study, seed_key="recovery.seed")
    *_, last = definition.points(one)
    assert last.seed == 1 and "recovery.seed=1" in last.overrides
    assert definition.dense_point(one, last).seed == 0 and definition.dense_point(study, last).seed == 1
