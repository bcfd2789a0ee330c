"""The study of experiments/tile_wise_hardware: its points, its lines, and one point on small data."""

from concurrent.futures import Future
from pathlib import Path

from sparsefront.artifacts.csv_lines import read_lines
from sparsefront.patterns.tile_wise import SOURCES, TileWise

FOLDER = Path(__file__).resolve().parents[2] / "experiments" / "tile_wise_hardware"
NAMES = ("points", "study", "summary")


class Inline:
    """A pool that does everything at once."""

    def submit(self, task, *arguments):
        future = Future()
        future.set_result(task(*arguments))
        return future

    def map(self, task, *arguments):
        return map(task, *arguments)


def result(points, val: float):
    facts = {
        "device": "cpu",
        "torch": "2",
        "transformers": "5",
        "lightning": "2",
        "commit": "abc",
        "date": "2026-11-22",
    }
    return points.Result("accuracy", val, val - 0.01, 0.75, 0.2, 1.5, 3.0, facts)


def test_variants_are_settings_of_the_pattern(modules, composed):
    points = modules["points"]
    from sparsefront.settings import build_settings

    built = {}
    for variant in points.VARIANTS:
        overrides = points.Point(variant, 32, "per_layer", 0.75, 1).overrides
        built[variant] = build_settings("pattern", composed(*overrides).pattern)
    assert built["sources"] == TileWise(32, **SOURCES)
    assert built["whole_tiles_16_rms"] == TileWise(32, whole_tiles=True, input_multiple=16, aggregate="rms")
    assert len(set(built.values())) == len(built)


def test_equal_masks_are_trained_once_and_finished_points_never_again(modules, tmp_path, monkeypatch):
    points, study = modules["points"], modules["study"]
    trained, out = [], tmp_path / "rows.csv"

    def finish(job, point):
        trained.append(point)
        return result(points, 0.8 + 0.01 * point.seed)

    monkeypatch.setattr(points, "finish", finish)
    monkeypatch.setattr(points, "mask_digest", lambda job, point: "same" if "16" in point.variant else point.variant)
    wanted = [points.Point(variant, 32, "per_layer", 0.75, seed) for seed in (0, 1) for variant in points.VARIANTS]
    job = points.Job(tmp_path, tmp_path, tmp_path)
    study.Study(job, Inline(), 2, out, float("-inf")).run(wanted)
    assert not trained and not out.exists(), "out of time before it began"
    study.Study(job, Inline(), 2, out, float("inf")).run(wanted[:2])
    study.Study(job, Inline(), 2, out, float("inf")).run(wanted)
    assert sorted(trained, key=str) == sorted(
        [
            points.dense(0),
            points.dense(1),
            *(point for point in wanted if "16" not in point.variant or point.variant == "whole_tiles_16"),
        ],
        key=str,
    )
    rows = read_lines(out)
    assert len(rows) == 2 + len(wanted)
    told = {(row["variant"], row["seed"]): row["same_masks_as"] for row in rows}
    assert told["whole_tiles_16_rms", "1"] == "whole_tiles_16" and told["whole_tiles_16", "1"] == ""
    assert study.unfinished(wanted, rows) == []


def test_the_table_takes_differences_seed_by_seed(modules, tmp_path):
    points, out = modules["points"], tmp_path / "rows.csv"
    for seed, (sources, whole) in enumerate([(0.80, 0.81), (0.90, 0.93)]):
        for variant, val in (("sources", sources), ("whole_tiles", whole)):
            points.append_row(
                out, points.Point(variant, 128, "per_layer", 0.75, seed), result(points, val), same_masks_as=""
            )
    *_, first, second = modules["summary"].table(read_lines(out))
    assert first == "| 128 | per_layer | 0.75 | sources | 2 | 85.00 | – | 84.00 | – | 0.200 | 1.50 |"
    assert "| whole_tiles | 2 | 87.00 | +2.00 ± 1.00 | 86.00 | +2.00 ± 1.00 |" in second


def test_a_point_is_trained_and_evaluated_on_both_splits(modules, tmp_path):
    from hydra.core.global_hydra import GlobalHydra
    from hydra.core.hydra_config import HydraConfig

    points = modules["points"]
    lines = [
        f"the film is {word} and {n} minutes long\t{label}"
        for n in range(20)
        for word, label in (("good", 1), ("bad", 0))
    ]
    (tmp_path / "SST-2").mkdir()
    for split in ("train", "dev"):
        (tmp_path / "SST-2" / f"{split}.tsv").write_text("\n".join(["sentence\tlabel", *lines]) + "\n")
    small = (
        "model.path=null",
        "model.size=tiny",
        "trainer=cpu",
        "trainer.progress_bar=false",
        "trainer.limit_batches=2",
    )
    job = points.Job(tmp_path, tmp_path, tmp_path / "cache", (*small, "measure.device=cpu", "recipe.batch_size=4"))
    point = points.Point("whole_tiles_16_rms", 32, "per_layer", 0.75, 0)
    try:
        found = points.finish(job, point)
        assert points.mask_digest(job, point) == points.mask_digest(job, point)
    finally:
        GlobalHydra.instance().clear()
        HydraConfig.instance().cfg = None
    assert found.metric_name == "accuracy" and 0 <= found.val_metric <= 1 and 0 <= found.dev_metric <= 1
    assert 0.74 < found.sparsity_achieved <= 0.75 and 0.24 < found.min_layer_density < 0.3
