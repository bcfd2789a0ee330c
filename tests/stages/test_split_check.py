"""Data that cannot be read, without rows or of a single class is rejected before training, and where it is evaluated."""

from pathlib import Path

import numpy as np
import pytest

from sparsefront.data.split_data import NoRows, SplitData
from sparsefront.errors import InvalidSetting
from sparsefront.pipeline import run_experiment

ON_CPU = ["debug=tiny", "trainer=cpu", "measure.device=cpu", "pattern=n_m"]
IMAGES = [*ON_CPU, "dataset=cifar10", "dataset.image_size=8", "recipe=default", "model.dim=64", "model.depth=1"]


@pytest.fixture(autouse=True)
def no_training(monkeypatch):
    def train(*_, **__):
        raise AssertionError("trained")

    monkeypatch.setattr("sparsefront.stages.dense.fit", train)


def cifar10(folder: Path, *, train: list[int], test: list[int]) -> list[str]:
    folder.mkdir(exist_ok=True)
    arrays = {}
    for split, labels in (("train", train), ("test", test)):
        images = np.zeros((len(labels), 32, 32, 3), dtype=np.uint8)
        images[:, 0, 0, 0], images[:, 0, 0, 1] = np.divmod(np.arange(len(labels)), 256)  # equal ones are not divided
        arrays[f"x_{split}"] = images
        arrays[f"y_{split}"] = np.array(labels, dtype=np.uint8)
    np.savez(folder / "data.npz", **arrays)
    return [*IMAGES, f"dataset.path={folder / 'data.npz'}"]


def glue(folder: Path, *, train: list[int], test: list[int]) -> list[str]:
    (folder / "SST-2").mkdir(parents=True)
    for name, labels in (("train", train), ("dev", test)):
        rows = [f"film {row} is seen\t{label}" for row, label in enumerate(labels)]
        (folder / "SST-2" / f"{name}.tsv").write_text("\n".join(["sentence\tlabel", *rows]) + "\n")
    return [*ON_CPU, "model=bert", "model.size=tiny", "dataset=glue", "dataset.task=sst2", f"dataset.path={folder}"]


MIXED, ONE = [0, 1] * 10, [1] * 20


@pytest.mark.parametrize("write", [cifar10, glue])
@pytest.mark.parametrize(("split", "labels"), [("train", (ONE, MIXED)), ("test", (MIXED, ONE))])
def test_one_class_is_rejected(composed, tmp_path, write, split, labels):
    config = composed(*write(tmp_path / "data", train=labels[0], test=labels[1]))
    rows = 18 if split == "train" else 20
    line = rf"^dataset\.path=\S+: {split} holds 1 of (10|2) classes, number 1, in all of its {rows} rows: .*100 %$"
    with pytest.raises(InvalidSetting, match=line):
        run_experiment(config)


@pytest.mark.parametrize(
    ("split", "allowed"),
    [
        ("train", "train holds no rows"),
        ("val", "val holds no rows; dataset.valid_fraction=0 holds nothing out"),
        ("test", "test holds no rows"),
    ],
)
def test_empty_split_of_own_data(composed, monkeypatch, split, allowed):
    load = SplitData.part
    monkeypatch.setattr(SplitData, "part", lambda data, name: NoRows() if name == split else load(data, name))
    with pytest.raises(InvalidSetting, match=f"^dataset=digits: {allowed}$"):
        run_experiment(composed(*ON_CPU))


def test_unreadable_test_part(composed, tmp_path):
    overrides = cifar10(tmp_path, train=MIXED, test=[9, 16])
    with pytest.raises(InvalidSetting, match=r"^dataset\.path=.*data\.npz: y_test is uint8 from 9 to 16"):
        run_experiment(composed(*overrides))


def test_dense_weights_do_not_hide_it(composed, monkeypatch, tmp_path):
    """The evaluation's limit is no part of a training: only the measurement can tell."""
    monkeypatch.undo()
    sorted_by_class = cifar10(tmp_path / "data", train=MIXED, test=[3] * 40 + [4] * 40)
    run_experiment(composed(*sorted_by_class, "stages=[dense,prune,recover,export]"))
    with pytest.raises(InvalidSetting, match="^measure.evaluate_limit=32: what is evaluated of test holds 1 of 10"):
        run_experiment(composed(*sorted_by_class, "stages=[swap,measure,report]"))
