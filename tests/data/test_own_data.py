"""Folders of images and tables of text that a user brings: no class to write."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, PngImagePlugin
from tiny_files import write_text_files

from sparsefront.data.image_folder import ImageFolder, ImageNet, read_image
from sparsefront.data.text_columns import TextColumns
from sparsefront.errors import InvalidSetting


def write_images(root: Path, *parts: str, count: int = 10) -> Path:
    noise = np.random.RandomState(0)
    for part in parts or ("",):
        for name in ("cat", "dog"):
            (root / part / name).mkdir(parents=True)
            for number in range(count):
                pixels = noise.randint(0, 255, (40, 40, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(root / part / name / f"{number}.png")
    return root


def names(data, split: str) -> set[str]:
    return {str(Path(file).relative_to(Path(file).parents[2])) for file, _ in data.part(split).files}


def test_class_folders_alone_are_divided_three_ways(tmp_path, opened):
    settings = ImageFolder(path=str(write_images(tmp_path / "all")), image_size=32, test_fraction=0.2, num_workers=0)
    settings.check()
    data = opened(settings)
    train, val, test = (names(data, split) for split in ("train", "val", "test"))
    assert len(test) == 4 and len(train | val) == 16 and not train & val and not (train | val) & test
    assert names(opened(settings, seed=3), "test") == test


def test_val_is_held_out_where_there_is_a_test_folder(tmp_path, opened):
    root = write_images(tmp_path / "three", "train", "val", "test", count=3)
    data = opened(ImageFolder(path=str(root), image_size=32, num_workers=0))
    for split in ("train", "val", "test"):
        assert len(names(data, split)) == 6 and all(name.startswith(split) for name in names(data, split))


def test_image_keys_follow_pixels(tmp_path):
    """Uncompressed images of one shape have equal sizes, whatever they show."""
    keys = set()
    for gray in (0, 1, 1):
        for part in ("train/cat", "train/dog", "val/cat", "val/dog"):
            (tmp_path / part).mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (40, 40), (gray, 0, 0)).save(tmp_path / part / "0.bmp")
        keys.add(str([kind(path=str(tmp_path)).fingerprint() for kind in (ImageFolder, ImageNet)]))
    assert len(keys) == 2


def test_hidden_folders_are_no_classes(tmp_path, opened):
    root = write_images(tmp_path / "hidden", "train", "val", count=3)
    for part in ("train", "val"):
        (root / part / ".ipynb_checkpoints").mkdir()
    settings = ImageFolder(path=str(root), image_size=32, num_workers=0)
    settings.check()
    assert settings.info.class_names == ("cat", "dog") and len(opened(settings).part("train").files) > 0


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


def broken(kind: str, file: Path) -> None:
    """A file as `../shared/cases/make_images.py` breaks them."""
    if kind == "long text":
        info = PngImagePlugin.PngInfo()
        info.add_text("c", "x" * (2 << 20), zip=True)
        Image.open(file).save(file, pnginfo=info)
    elif kind == "bomb":
        Image.new("1", (20000, 20000)).save(file)
    elif kind == "truncated":
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    elif kind == "16 bits":
        Image.fromarray((np.random.RandomState(0).rand(40, 40) * 60000).astype(np.uint16)).save(file)
    elif kind == "empty":
        file.write_bytes(b"")
    elif kind == "overwritten":
        content = file.read_bytes()
        file.write_bytes(content[:60] + b"\0" * 20 + content[80:])


@pytest.mark.parametrize("kind", ["long text", "bomb", "truncated", "16 bits", "empty", "overwritten"])
def test_a_bad_image_is_named_in_one_line(tmp_path, kind):
    file = write_images(tmp_path, count=1) / "cat" / "0.png"
    broken(kind, file)
    with pytest.raises(InvalidSetting, match=r"dataset\.path=.*0\.png: cannot be read as an image") as caught:
        read_image(str(file))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("mode", "ending"), [("CMYK", "jpg"), ("RGBA", "png"), ("LA", "png"), ("P", "gif"), ("1", "png")]
)
def test_other_color_modes_are_read(tmp_path, mode, ending):
    file = tmp_path / f"image.{ending}"
    Image.new(mode, (40, 40)).save(file)
    assert read_image(str(file)).mode == "RGB"


def test_text_from_files_and_from_disk_is_the_same(tmp_path, opened):
    import datasets

    folder = write_text_files(tmp_path / "csv")
    datasets.load_dataset(str(folder)).save_to_disk(str(tmp_path / "saved"))
    loaders = [opened(TextColumns(path=str(tmp_path / name))) for name in ("csv", "saved")]
    for split in ("train", "val", "test"):
        first, second = (next(iter(getattr(data, f"{split}_dataloader")())) for data in loaders)
        assert first.keys() == second.keys() and all(torch.equal(first[key], second[key]) for key in first)


@pytest.fixture
def hub(monkeypatch):
    """Stands in for the hub; `asked` is what was called."""
    import datasets
    from huggingface_hub import constants

    asked = []

    def load_dataset(name, config, *, revision, split):
        asked.append((name, config, revision, split))
        rows = datasets.Dataset.from_dict({"review": [f"film {row}" for row in range(20)], "stars": [0, 1] * 10})
        return rows.cast_column("stars", datasets.ClassLabel(names=["low", "high"]))

    def get_dataset_split_names(name, config, *, revision):
        asked.append((name, config, revision))
        if config == "none":
            raise ValueError("BuilderConfig 'none' not found.\nAvailable: ['plain']")
        return ["train", "validation"]

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    monkeypatch.setattr(datasets, "get_dataset_split_names", get_dataset_split_names)
    return asked


def test_a_set_of_the_hub_is_read_at_its_commit(hub, opened):
    settings = TextColumns(hub="someone/films", config="plain", revision="1" * 40, text="review", label="stars")
    assert settings.class_names == ("low", "high")
    data = opened(settings)
    assert [len(data.part(split)) for split in ("train", "val", "test")] == [18, 2, 20]
    films = ("someone/films", "plain", "1" * 40)
    assert sorted(hub, key=len) == [films, (*films, "train"), (*films, "validation")]


def test_what_the_hub_does_not_have_is_one_line(hub, opened):
    settings = TextColumns(hub="someone/films", config="none", revision="1" * 40, text="review", label="stars")
    with pytest.raises(
        InvalidSetting, match=r"path=None: someone/films could not be loaded .*'none' not found.*; set"
    ) as told:
        opened(settings).part("test")
    assert "\n" not in str(told.value)


@pytest.mark.parametrize("key", ["text", "label"])
def test_columns_of_lists_are_named(tmp_path, key):
    row = {"text": '"a film"', "label": '"bad"'}
    row[key] = f"[{row[key]}]"
    line = f'{{"text": {row["text"]}, "label": {row["label"]}}}\n'
    for part in ("train", "test"):
        (tmp_path / f"{part}.jsonl").write_text(line * 4)
    with pytest.raises(InvalidSetting, match=rf"{key}={key}: holds list, not "):
        TextColumns(path=str(tmp_path)).check()


def test_classes_are_those_of_the_labels(tmp_path):
    settings = TextColumns(path=str(write_text_files(tmp_path / "text")))
    settings.check()
    assert settings.class_names == settings.info.class_names == ("bad", "good") and settings.info.num_classes == 2
    assert settings.metrics == ("accuracy", "f1")


def test_labels_with_a_fraction_are_scores(tmp_path, opened):
    for part in ("train", "validation"):
        lines = [f"row {number} of {part},{number / 4}" for number in range(12)]
        (tmp_path / f"{part}.csv").write_text("\n".join(["text,label", *lines]))
    settings = TextColumns(path=str(tmp_path))
    settings.check()
    assert settings.info.num_classes == 1 and settings.metrics[0] == "pearson" and settings.info.class_names == ()
    assert opened(settings).part("test").labels.dtype == torch.float32


def test_pairs_of_texts(tmp_path, opened):
    for part in ("train", "test"):
        lines = [f"{part} {number},other {number},{number % 3}" for number in range(12)]
        (tmp_path / f"{part}.csv").write_text("\n".join(["a,b,y", *lines]))
    settings = TextColumns(path=str(tmp_path), text="a", text_pair="b", label="y")
    batch = next(iter(opened(settings).train_dataloader()))
    assert batch["token_type_ids"].max() == 1 and settings.class_names == ("0", "1", "2")


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
def test_settings_that_do_not_fit_the_files(tmp_path, settings, message):
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


def test_a_folder_that_is_no_table(tmp_path):
    (tmp_path / "a.txt").write_text("x")
    for path in (tmp_path, tmp_path / "a.txt"):
        with pytest.raises(InvalidSetting, match="(has no .csv, .*|is no folder); set dataset.path to"):
            TextColumns(path=str(path)).check()
    assert os.listdir(tmp_path) == ["a.txt"]
