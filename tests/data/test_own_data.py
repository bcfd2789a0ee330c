"""Folders of images and tables of text that a user brings: no class to write."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from tiny_files import write_text_files

from sparsefront.data.image_folder import ImageFolder
from sparsefront.data.text_columns import TextColumns
from sparsefront.errors import InvalidSetting


def write_images(root: Path, *parts: str) -> Path:
    noise = np.random.RandomState(0)
    for part in parts or ("",):
        for name in ("cat", "dog"):
            (root / part / name).mkdir(parents=True)
            for number in range(10):
                pixels = noise.randint(0, 255, (40, 40, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(root / part / name / f"{number}.png")
    return root


def names(data, split: str) -> set[str]:
    return {str(Path(file).relative_to(Path(file).parents[2])) for file, _ in data.part(split).files}


def test_class_folders_are_divided(tmp_path, opened):
    settings = ImageFolder(path=str(write_images(tmp_path / "all")), image_size=32, test_fraction=0.2, num_workers=0)
    settings.check()
    data = opened(settings)
    train, val, test = (names(data, split) for split in ("train", "val", "test"))
    assert len(test) == 4 and len(train | val) == 16 and not train & val and not (train | val) & test
    assert names(opened(settings, seed=3), "test") == test


@pytest.mark.parametrize(
    ("folders", "message"),
    [
        ((), "train/ has no class folders"),
        (("cat",), r"one class folder \(cat\)"),
        (("train/cat", "train/dog"), "has train/ and none of test/, val/"),
        (("train/cat", "train/dog", "test/cat"), "hold different classes .dog"),
    ],
)
def test_other_layouts_are_named(tmp_path, folders, message):
    for folder in folders:
        (tmp_path / folder).mkdir(parents=True)
    with pytest.raises(InvalidSetting, match=message):
        ImageFolder(path=str(tmp_path)).check()


def test_text_of_files_and_disk(tmp_path, opened):
    import datasets

    folder = write_text_files(tmp_path / "csv")
    datasets.load_dataset(str(folder)).save_to_disk(str(tmp_path / "saved"))
    loaders = [opened(TextColumns(path=str(tmp_path / name))) for name in ("csv", "saved")]
    for split in ("train", "val", "test"):
        first, second = (next(iter(getattr(data, f"{split}_dataloader")())) for data in loaders)
        assert first.keys() == second.keys() and all(torch.equal(first[key], second[key]) for key in first)


@pytest.fixture
def films(hub, monkeypatch):
    """Everything that the hub was asked for."""
    import datasets

    def rows(split):
        films = datasets.Dataset.from_dict({"review": [f"film {row}" for row in range(20)], "stars": [0, 1] * 10})
        return films.cast_column("stars", datasets.ClassLabel(names=["low", "high"]))

    def get_dataset_split_names(name, config, *, revision):
        hub.asked.append((name, config, revision))
        return ["train", "validation"]

    hub.rows = rows
    monkeypatch.setattr(datasets, "get_dataset_split_names", get_dataset_split_names)
    return hub.asked


def test_set_of_the_hub(films, opened):
    settings = TextColumns(hub="someone/films", config="plain", revision="1" * 40, text="review", label="stars")
    assert settings.class_names == ("low", "high")
    data = opened(settings)
    assert [len(data.part(split)) for split in ("train", "val", "test")] == [18, 2, 20]
    asked = ("someone/films", "plain", "1" * 40)
    assert sorted(films, key=len) == [asked, (*asked, "train"), (*asked, "validation")]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "path=None: set dataset.path to .*, or dataset.hub to owner/name"),
        ({"path": "PATH", "hub": "stanfordnlp/imdb"}, "hub=stanfordnlp/imdb: dataset.path=.* is set too"),
        ({"path": "PATH", "text": "review"}, "text=review: is no column of train: one of text, label"),
        ({"path": "PATH", "label": "y"}, "label=y: is no column of train: one of text, label"),
        ({"path": "PATH", "train_split": "training"}, "train_split=training: .*has no such split: one of test, train"),
        ({"path": "PATH", "test_split": "dev"}, "test_split=dev: .*has no such split: one of test, train"),
        ({"path": "PATH", "text": "label", "label": "text", "text_pair": "z"}, "text_pair=z: is no column"),
    ],
)
def test_settings_that_misfit_the_files(tmp_path, settings, message):
    if "path" in settings:
        settings = settings | {"path": str(write_text_files(tmp_path / "text"))}
    with pytest.raises(InvalidSetting, match=message):
        TextColumns(**settings).check()


@pytest.mark.parametrize(
    ("test_file", "message"),
    [
        ("text,label\nfine,ugly\n", r"row 0 is labeled 'ugly': expected a class of train \(bad, good\)"),
        ("text,label\n", "test has no rows"),
        ("text,label\n,good\nx,bad\n", "text=text: 1 of 2 rows of test have no value"),
    ],
)
def test_rows_that_do_not_fit(tmp_path, opened, test_file, message):
    write_text_files(tmp_path)
    (tmp_path / "test.csv").write_text(test_file)
    with pytest.raises(InvalidSetting, match=message):
        settings = TextColumns(path=str(tmp_path))
        settings.check()
        opened(settings).part("test")
