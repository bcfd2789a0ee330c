"""The division of train, by rows and by groups: what belongs together is on one side, and results name the rule."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_files import WORDS, write_glue

from sparsefront.data.base import DROPPED, hold_out
from sparsefront.data.cifar10 import Cifar10
from sparsefront.data.glue import Glue
from sparsefront.data.image_folder import ImageFolder
from sparsefront.data.text_columns import TextColumns
from sparsefront.errors import InvalidSetting
from sparsefront.splits import main


@given(st.lists(st.integers(0, 4), min_size=2, max_size=200), st.floats(0.01, 0.5))
def test_every_row_is_on_one_side(strata: list[int], fraction: float) -> None:
    stay, held = hold_out(strata, fraction)
    assert sorted([*stay, *held]) == list(range(len(strata)))
    assert len(stay) and len(held)
    assert (np.diff(stay) > 0).all() and (np.diff(held) > 0).all()


def test_the_division_never_changes() -> None:
    """Results of different machines and versions are compared on the same rows: these must stay as they are."""
    assert hold_out([0] * 20, 0.2)[1].tolist() == [0, 9, 13, 19]
    assert hold_out([0, 1] * 10, 0.2)[1].tolist() == [10, 11, 16, 17]


def sides(groups: np.ndarray, divided: tuple[np.ndarray, np.ndarray]) -> tuple[set[int], set[int]]:
    return tuple(set(groups[part].tolist()) for part in divided)  # type: ignore[return-value]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(-1, 20)), min_size=2, max_size=200), st.floats(0.01, 0.5))
def test_groups_are_never_cut(rows: list[tuple[int, int]], fraction: float) -> None:
    strata, groups = (np.array(column) for column in zip(*rows, strict=True))
    if len(set(groups.tolist()) - {DROPPED}) < 2:
        with pytest.raises(InvalidSetting, match="split_by=rows"):
            hold_out(strata, fraction, groups=groups)
        return
    train, val = sides(groups, divided := hold_out(strata, fraction, groups=groups))
    assert train and val and not train & val
    assert sorted(np.concatenate(divided)) == np.flatnonzero(groups != DROPPED).tolist()


def sentence(number: int) -> str:
    return " ".join(f"{WORDS[(number * place) % 16]}{number}" for place in range(1, 9))


@pytest.fixture
def phrases(tmp_path: Path) -> Glue:
    """SST-2 of 40 sentences, each with its parts and with single words."""
    settings = Glue(path=str(write_glue(tmp_path / "phrases", "sst2")))
    lines = ["sentence\tlabel"]
    for number in range(40):
        words = sentence(number).split()
        parts = [words, words[:4], words[3:7], words[5:], words[:2], words[-1:]]
        lines += [f"{' '.join(part)} \t{number % 2}" for part in parts]
    settings.files()["train"].write_text("\n".join(lines) + "\n")
    return settings


def test_sst2_phrases_are_not_divided(phrases: Glue, tmp_path: Path) -> None:
    texts = [row.first.strip() for row in phrases.source(tmp_path)._train]  # type: ignore[attr-defined]

    def leaks(settings: Glue) -> int:
        divided = settings.division(tmp_path)
        train = [f" {texts[row]} " for row in divided.train if texts[row].count(" ") > 1]
        held = [f" {texts[row]} " for row in divided.val]
        return sum(any(one in other or other in one for other in train) for one in held)

    assert leaks(phrases) == 0 and leaks(replace(phrases, split_by="rows")) > 10
    divided = phrases.division(tmp_path)
    assert (len(divided.train), len(divided.val)) == (144, 16) and divided.groups is not None
    assert all(texts[row].count(" ") < 2 for row in divided.dropped) and len(divided.dropped) == 80
    assert phrases.split_version == "sst2-phrases-1" and replace(phrases, split_by="rows").split_version == "rows"
    full = replace(phrases, valid_fraction=0.0)
    assert full.split_version is None and len(full.division(tmp_path).train) == 240


def duplicated_images(folder: Path) -> Cifar10:
    images = np.repeat(np.arange(20, dtype=np.uint8), 5)[:, None, None, None] * np.ones((1, 32, 32, 3), np.uint8)
    labels = np.arange(100) % 10
    folder.mkdir(parents=True, exist_ok=True)
    np.savez(folder / "c.npz", x_train=images, y_train=labels, x_test=images[:10], y_test=labels[:10])
    return Cifar10(path=str(folder / "c.npz"))


def duplicated_files(folder: Path) -> ImageFolder:
    from PIL import Image

    for name in ("cat", "dog"):
        (folder / name).mkdir(parents=True)
        for number in range(24):
            Image.new("RGB", (40, 40), (number // 3, 0, 0)).save(folder / name / f"{number:02}.png")
    return ImageFolder(path=str(folder))


def duplicated_texts(folder: Path) -> TextColumns:
    folder.mkdir(parents=True)
    lines = [f"text {number // 4},{number % 2}" for number in range(80)]
    for part in ("train", "test"):
        (folder / f"{part}.csv").write_text("\n".join(["text,label", *lines]) + "\n")
    return TextColumns(path=str(folder))


def duplicated_questions(folder: Path) -> Glue:
    settings = Glue(task="rte", path=str(write_glue(folder, "rte")))
    head, *lines = settings.files()["train"].read_text().splitlines()
    settings.files()["train"].write_text("\n".join([head, *lines, *lines, *lines]) + "\n")
    return settings


@pytest.mark.parametrize("make", [duplicated_images, duplicated_files, duplicated_texts, duplicated_questions])
def test_duplicates_are_not_divided(make: Any, tmp_path: Path) -> None:
    settings = make(tmp_path / "data")
    divided = settings.division(tmp_path)
    assert settings.split_version == "duplicates-1"
    parts = [set(divided.groups[rows].tolist()) for rows in (divided.train, divided.val, divided.test)]
    assert parts[0] and parts[1] and not parts[0] & parts[1] and not parts[2] & (parts[0] | parts[1])
    assert len(np.unique(divided.groups)) < len(divided.groups), "the rows are duplicates of one another"
    by_rows = replace(settings, split_by="rows").division(tmp_path)
    train, val = (set(divided.groups[rows].tolist()) for rows in (by_rows.train, by_rows.val))
    assert train & val, "the split by rows leaks"


def test_one_group_is_not_divided() -> None:
    with pytest.raises(InvalidSetting, match="path=here: its 4 rows belong together in one group.*split_by=rows"):
        hold_out([0] * 4, 0.5, groups=np.zeros(4, dtype=int), path="here")


# The program.


def test_the_program_prints_which_rows(phrases: Glue, capsys: Any) -> None:
    assert main(["dataset=glue", f"dataset.path={phrases.path}"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["split"] == "sst2-phrases-1" and told["rows"] == told["train"] + told["held_out"] + told["dropped"]
    assert told["groups"] == {"count": 40, "held_out": 4, "largest": 4, "largest_held_out": 4}
    assert len(told["held_out_rows"]) == told["held_out"] and len(told["dropped_rows"]) == told["dropped"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["dataset=imagenet", "dataset.split_by=groups"], "dataset.split_by=groups: imagenet declares no groups"),
        (
            ["dataset=glue", "dataset.split_by=sentence"],
            "dataset.split_by=sentence: must be 'auto', 'groups' or 'rows'",
        ),
        (["dataset=glue", "dataset.path=/nowhere"], "dataset.path=/nowhere: does not exist"),
    ],
)
def test_bad_input_is_one_line(arguments: list[str], message: str, capsys: Any) -> None:
    assert main(arguments) == 2
    assert capsys.readouterr().err.startswith(message)
