"""Tiny copies of every data set, in the layout of the real one."""

import json
from pathlib import Path

import numpy as np

from sparsefront.data.glue import GLUE_TASKS

WORDS = "red green blue black white brown yellow purple orange silver golden gray pink dark light plain".split()


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


def write_tiny_imagenet(folder: Path, *, train: int = 40, val: int = 20) -> Path:
    """Images of one gray each, of ten of the classes."""
    folder.mkdir(parents=True, exist_ok=True)
    for part, count in (("train", train), ("val", val)):
        gray = np.arange(100, 100 + count, dtype=np.uint8)
        images = np.broadcast_to(gray[:, None, None, None], (count, 64, 64, 3)).copy()
        np.savez(folder / f"{part}.npz", images=images, labels=(np.arange(count) % 10 * 20).astype(np.uint8))
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


def write_text_files(folder: Path, *, train: int = 40, test: int = 12) -> Path:
    """train.csv and test.csv with the columns text and label; the classes are words."""
    folder.mkdir(parents=True, exist_ok=True)
    for part, count in (("train", train), ("test", test)):
        lines = [f'"{WORDS[number % 16]} {part} {number}",{("bad", "good")[number % 2]}' for number in range(count)]
        (folder / f"{part}.csv").write_text("\n".join(["text,label", *lines]) + "\n", encoding="utf-8")
    return folder


def write_imdb(folder: Path, *, train: int = 40, test: int = 12) -> Path:
    """Reviews of two words and a number, and as many without a label as train has; the first of each also stands in test."""
    folder.mkdir(parents=True, exist_ok=True)
    for part, count in (("train", train), ("test", test), ("unsup", train)):
        lines = []
        for number in range(count):
            in_test = part != "test" and number == 0
            text = f"{WORDS[number % 16]}<br /><br />{'test' if in_test else part} {number}"
            row = {
                "id": f"{part}/{number}",
                "text": text,
                "in_test": in_test,
                "in_train": part == "unsup" and number == 1,
            }
            lines.append(json.dumps(row if part == "unsup" else row | {"label": number % 2}))
        (folder / f"{part}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
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


def write_pairs(folder: Path, *, source: str = "en", target: str = "de", **counts: int) -> Path:
    """One sentence a line; every third source occurs twice, and pair i says `... train i ...`.

    Args:
        counts: split -> pairs.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for part, count in ({"train": 40, "test": 12} | counts).items():
        numbers = [number - (number % 3 == 1) for number in range(count)]
        sources = [f"the {WORDS[number % 16]} {part} {number} is it" for number in numbers]
        targets = [f"es ist {part} {number} {WORDS[(number + 3) % 16]}" for number in range(count)]
        for language, lines in ((source, sources), (target, targets)):
            (folder / f"{part}.{language}").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


def write_squad(folder: Path, *, train: int = 20, dev: int = 6) -> Path:
    squad_file(folder / "train-v1.1.json", paragraphs=train)
    squad_file(folder / "dev-v1.1.json", paragraphs=dev)
    return folder
