"""What every data set keeps, found by its YAML."""

import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf
from torch import Tensor

from sparsefront.errors import InvalidSetting

FILES = sorted((Path(__file__).resolve().parents[2] / "conf" / "dataset").glob("*.yaml"))
NAMES = [file.stem for file in FILES]
SPLITS = ("train", "val", "test")

every_dataset = pytest.mark.parametrize("name", NAMES)


def batches(data: Any, split: str) -> list[dict[str, Tensor]]:
    return list(getattr(data, f"{split}_dataloader")())


def rows(data: Any, split: str) -> list[bytes]:
    """Each row of a split as something that can be compared, whatever the augmentation."""
    name, part = data_name(data), data.part(split)
    if name == "imagenet":
        return [Path(path).relative_to(Path(path).parents[1]).as_posix().encode() for path, _ in part.files]
    if name in ("cifar10", "digits"):
        return [image.numpy().tobytes() for image in part.images]
    if hasattr(data, "sentences"):
        return [line.encode() for line in data.sentences.pairs(split)[1]]
    if name == "wikitext2":
        return [row.numpy().tobytes() for row in part.__getitems__(list(range(len(part))))["input_ids"]]
    return [
        part.text.tokens["input_ids"][begin:end].numpy().tobytes() for begin, end in part.text.starts.unfold(0, 2, 1)
    ]


def data_name(data: Any) -> str:
    if hasattr(data, "sentences"):
        return data.sentences.name.split("-")[0]
    if hasattr(data, "source"):
        return data.source.name.split("-")[0]
    part = data.part("test")
    return "imagenet" if hasattr(part, "files") else ("digits" if part.images.shape[1] == 1 else "cifar10")


def equal(first: list[dict[str, Tensor]], second: list[dict[str, Tensor]]) -> bool:
    return len(first) == len(second) and all(
        a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)
        for a, b in zip(first, second, strict=True)
    )


@every_dataset
def test_yaml_holds_every_setting(name: str, tiny: Any) -> None:
    written = OmegaConf.to_container(OmegaConf.load(FILES[NAMES.index(name)])).keys() - {"_target_"}
    assert written == {field.name for field in fields(tiny(name))}


@every_dataset
def test_batches_of_each_task(name: str, tiny: Any, opened: Any) -> None:
    settings = tiny(name)
    settings.check()
    info, data = settings.info, opened(settings)
    assert len(info.class_names) in (0, info.num_classes)
    for split in SPLITS:
        batch = batches(data, split)[0]
        count = len(next(iter(batch.values())))
        if info.kind == "image_classification":
            assert batch.keys() == {"x", "labels"}
            assert batch["x"].dtype == torch.float32
            assert batch["x"].shape == (count, info.channels, info.image_size, info.image_size)
        elif info.kind == "causal_lm":
            assert batch.keys() == {"input_ids", "scored"} and batch["input_ids"].shape == (count, info.sequence_length)
            assert all(values.dtype == torch.int64 for values in batch.values())
        elif info.kind == "translation":
            assert batch.keys() == {"source", "source_mask", "target", "labels"}
            assert (
                batch["source"].shape == batch["source_mask"].shape and batch["target"].shape == batch["labels"].shape
            )
            assert max(batch["source"].shape[1], batch["labels"].shape[1]) <= info.sequence_length
            assert batch["source_mask"].dtype == torch.bool and int(batch["labels"].max()) < info.vocabulary
            continue
        else:
            own = {"labels"}
            if info.kind == "extractive_qa":
                own = {"start_positions", "end_positions"} if split == "train" else {"window", "question"}
            assert batch.keys() == {"input_ids", "attention_mask", "token_type_ids"} | own
            assert batch["input_ids"].shape[1] <= info.sequence_length
            assert all(values.dtype == torch.int64 for values in batch.values())
        if "labels" in batch:
            assert batch["labels"].shape == (count,)
            assert 0 <= int(batch["labels"].min()) and int(batch["labels"].max()) < info.num_classes


@every_dataset
def test_same_seed_same_batches(name: str, tiny: Any, opened: Any) -> None:
    settings = tiny(name)
    first = batches(opened(settings), "train")
    torch.manual_seed(17)  # the run's own generator does not matter
    again = opened(settings)
    assert equal(first, batches(again, "train"))
    assert equal(first, batches(again, "train")), "a second loader of one data module starts anew"
    assert not equal(first, batches(opened(settings, seed=1), "train"))


@every_dataset
def test_splits_are_complete_and_disjoint(name: str, tiny: Any, opened: Any) -> None:
    """Whatever the seed; the loaders of val and test are in order."""
    data, other = opened(tiny(name), batch_size=7), opened(tiny(name), seed=5, batch_size=7)
    train, val = set(rows(data, "train")), set(rows(data, "val"))
    assert train and val and not train & val
    for split in SPLITS:
        assert rows(data, split) == rows(other, split)
    for split in ("val", "test"):
        read = batches(data, split)
        assert equal(read, batches(other, split))
        assert sum(len(next(iter(batch.values()))) for batch in read) == len(data.part(split))


@every_dataset
def test_fingerprint_is_the_content(name: str, tiny: Any, tmp_path: Path) -> None:
    settings = tiny(name)
    fingerprint = settings.fingerprint()
    assert json.loads(json.dumps(fingerprint)) == fingerprint == tiny(name).fingerprint()
    assert str(tmp_path) not in json.dumps(fingerprint)
    assert tiny(name, num_workers=3).fingerprint() == fingerprint
    assert tiny(name, valid_fraction=0.5).fingerprint() != fingerprint


@pytest.mark.parametrize("name", [name for name in NAMES if name != "digits"])
def test_fingerprint_follows_the_files(name: str, tiny: Any, tmp_path: Path) -> None:
    settings = tiny(name)
    before = settings.fingerprint()
    moved = tmp_path / "elsewhere"
    Path(settings.path).rename(moved)
    moved_settings = replace(settings, path=str(moved))
    assert moved_settings.fingerprint() == before
    next(file for file in sorted(moved.rglob("*")) if file.is_file()).open("ab").write(b"\n")
    assert moved_settings.fingerprint() != before


@every_dataset
def test_bad_settings_are_named(name: str, tiny: Any) -> None:
    for key, value in (("valid_fraction", -0.1), ("valid_fraction", 0.6), ("num_workers", -1)):
        with pytest.raises(InvalidSetting, match=f"{key}={value}"):
            replace(tiny(name), **{key: value})
    if name != "digits":
        with pytest.raises(InvalidSetting, match="path=/nowhere/at/all.*does not exist; set dataset.path to"):
            tiny(name, path="/nowhere/at/all").check()


@every_dataset
def test_nothing_may_be_held_out(name: str, tiny: Any, opened: Any) -> None:
    """As papers that train on all of train do."""
    some, none = opened(tiny(name)), opened(tiny(name, valid_fraction=0.0))
    none.setup("fit")
    assert len(none.part("val")) == 0 and list(none.val_dataloader()) == []
    if name != "wikitext2":  # whose windows are other ones
        assert sorted(rows(none, "train")) == sorted([*rows(some, "train"), *rows(some, "val")])
