"""Tiny copies of every data set, in the layout of the real one, and a tokenizer that needs no download."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparsefront.datasets.glue_tasks import GLUE_TASKS

WORDS = "red green blue black white brown yellow purple orange silver golden gray pink dark light plain".split()


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    from sparsefront.models.wordpiece import train_wordpiece

    return train_wordpiece(
        [" ".join(WORDS), "abcdefghijklmnopqrstuvwxyz 0123456789 . , ?"], vocabulary_size=300, max_length=512
    )


def write_cifar(folder: Path, *, train: int = 40, test: int = 20) -> Path:
    """An .npz whose images are of one color each, so that a batch shows which rows it holds."""
    folder.mkdir(parents=True, exist_ok=True)
    arrays = {}
    for part, count in (("train", train), ("test", test)):
        gray = np.arange(100, 100 + count, dtype=np.uint8)
        arrays[f"x_{part}"] = np.broadcast_to(gray[:, None, None, None], (count, 32, 32, 3)).copy()
        arrays[f"y_{part}"] = (np.arange(count) % 10).astype(np.uint8)
    np.savez(folder / "cifar10_subset.npz", **arrays)
    return folder


def write_imagenet(folder: Path, *, train: int = 12, val: int = 4) -> Path:
    """Two classes of noise."""
    from PIL import Image

    noise = np.random.RandomState(0)
    for part, count in (("train", train), ("val", val)):
        for name in ("cat", "dog"):
            (folder / part / name).mkdir(parents=True)
            for number in range(count // 2):
                pixels = noise.randint(0, 256, (40, 48, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / part / name / f"{number}.png")
    return folder


# Header and one row of each task as the original distribution has them; {a}, {b} are sentences and {y} is the label.
GLUE_LAYOUTS = {
    "cola": (None, "gj04\t{y}\t\t{a}"),
    "sst2": ("sentence\tlabel", "{a}\t{y}"),
    "mrpc": ("Quality\t#1 ID\t#2 ID\t#1 String\t#2 String", "{y}\t11\t12\t{a}\t{b}"),
    "qqp": ("id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate", "0\t1\t2\t{a}\t{b}\t{y}"),
    "stsb": (
        "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore",
        "0\tnews\tfile\t2012\t1\tnone\tnone\t{a}\t{b}\t{y}",
    ),
    "mnli": (
        "index\tpromptID\tpairID\tgenre\tsentence1_binary_parse\tsentence2_binary_parse\tsentence1_parse\tsentence2_parse\t"
        "sentence1\tsentence2\tlabel1\tgold_label",
        "0\t1\t1n\tfiction\t( p )\t( p )\t(ROOT)\t(ROOT)\t{a}\t{b}\tneutral\t{y}",
    ),
    "qnli": ("index\tquestion\tsentence\tlabel", "0\t{a}\t{b}\t{y}"),
    "rte": ("index\tsentence1\tsentence2\tlabel", "0\t{a}\t{b}\t{y}"),
}


def write_glue(folder: Path, task: str, *, train: int = 40, dev: int = 12) -> Path:
    """The folder of a task below `folder`, which is given back; row i says `... train i ...`."""
    layout = GLUE_TASKS[task]
    header, row = GLUE_LAYOUTS[task]
    labels = layout.label_names or ("0.5", "4.25")
    (folder / layout.folder).mkdir(parents=True, exist_ok=True)
    for part, name, count in (("train", "train", train), ("dev", layout.dev_file, dev)):
        lines = [] if header is None else [header]
        for number in range(count):
            first, second = f'{WORDS[number % 16]} "{part} {number}', f"the {part} {number} is it"
            lines.append(row.format(a=first, b=second, y=labels[number % len(labels)]))
        (folder / layout.folder / f"{name}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


def squad_file(file: Path, *, paragraphs: int, questions: int = 2) -> Path:
    """A file in the form of SQuAD v1.1: each paragraph is a list of colors, each answer one or two of them."""
    part, entries = file.stem.split("-")[0], []
    for number in range(paragraphs):
        context = f"{part} {number} has " + " , ".join(WORDS[(number + place) % 16] for place in range(14)) + " ."
        asked = []
        for question in range(questions):
            text = f"{WORDS[(number + question) % 16]} , {WORDS[(number + question + 1) % 16]}"
            answers = [{"text": text, "answer_start": context.index(text)}]
            asked.append(
                {"id": f"{part}-{number}-{question}", "question": f"which is {question} ?", "answers": answers}
            )
        entries.append({"context": context, "qas": asked})
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({"version": "1.1", "data": [{"title": "colors", "paragraphs": entries}]}))
    return file


def write_squad(folder: Path, *, train: int = 20, dev: int = 6) -> Path:
    squad_file(folder / "train-v1.1.json", paragraphs=train)
    squad_file(folder / "dev-v1.1.json", paragraphs=dev)
    return folder


@pytest.fixture
def tiny(tmp_path: Path) -> Any:
    """tiny(name, **settings) -> the settings of a data set, its YAML read by Hydra, its files made in `tmp_path`."""
    from hydra.utils import instantiate
    from omegaconf import OmegaConf

    conf = Path(__file__).resolve().parents[2] / "conf" / "dataset"

    def make(name: str, **settings: Any) -> Any:
        config = OmegaConf.to_container(OmegaConf.load(conf / f"{name}.yaml"))
        config["num_workers"] = 0
        if name == "cifar10":
            config["path"] = str(write_cifar(tmp_path / "cifar10"))
        elif name == "imagenet":
            config |= {"path": str(tmp_path / "imagenet"), "image_size": 32, "valid_fraction": 0.25}
            if not (tmp_path / "imagenet").exists():
                write_imagenet(tmp_path / "imagenet")
        elif name == "glue":
            config["path"] = str(write_glue(tmp_path / "glue", settings.get("task", config["task"])))
        elif name == "squad":
            config |= {"path": str(write_squad(tmp_path / "squad")), "max_length": 40, "stride": 8}
        return instantiate(config | settings, _convert_="all")

    return make


@pytest.fixture
def opened(tmp_path: Path, tokenizer: Any) -> Any:
    """opened(settings, seed=0, batch_size=8) -> the data module."""

    def open_data(settings: Any, *, seed: int = 0, batch_size: int = 8) -> Any:
        return settings.data_module(
            batch_size=batch_size, seed=seed, cache_dir=tmp_path / "cache", tokenizer_from=lambda texts: tokenizer
        )

    return open_data
