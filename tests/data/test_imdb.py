"""IMDb: rows that also stand in test, files with rows missing, and texts that are cut in the middle."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from tiny_files import write_imdb

from sparsefront.data.imdb import Imdb
from sparsefront.errors import InvalidSetting

ROW = {"text": "good", "label": 1}


def write_rows(file: Path, *rows: object) -> None:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


@pytest.mark.parametrize("settings", [{}, {"split_by": "rows"}, {"valid_fraction": 0.0}])
def test_rows_in_test_are_left_out(tiny: Any, tmp_path: Path, caplog: Any, settings: dict[str, Any]) -> None:
    caplog.set_level(logging.INFO)
    dataset = tiny("imdb", **settings)
    dataset.check()
    assert "1 of 40 rows of train are left out: also in test" in caplog.text
    division = dataset.division(tmp_path)
    assert division.dropped.tolist() == [0] and division.rows == 40
    assert len(division.val) == (0 if "valid_fraction" in settings else 8)


def test_texts_of_equal_words_stay_together(tmp_path: Path) -> None:
    texts = [text for word in ("red", "blue", "white") for text in (word + " One", f"{word}, one!<br />")]
    write_rows(tmp_path / "train.jsonl", *({"text": text, "label": row % 2} for row, text in enumerate(texts)))
    write_rows(tmp_path / "test.jsonl", ROW)
    division = Imdb(path=str(tmp_path), complete=False, valid_fraction=0.34).division(tmp_path)
    assert len(division.val) == 2 and division.val[0] // 2 == division.val[1] // 2


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"label": 1}, "line 2 has no text; it must be in a folder with train.jsonl and test.jsonl"),
        ({"text": " ", "label": 1}, "line 2 has no text"),
        ({"text": "good"}, "line 2 has the label None: 1 .positive. or 0"),
        ({"text": "good", "label": 2}, "line 2 has the label 2"),
        ({"text": "good", "label": True}, "line 2 has the label True"),
        (ROW | {"in_test": "no"}, "line 2 has in_test='no'"),
        ([], "line 2 has no text"),
    ],
)
def test_unusable_rows_are_named(tmp_path: Path, row: object, message: str) -> None:
    write_rows(tmp_path / "train.jsonl", ROW, row)
    write_rows(tmp_path / "test.jsonl", ROW)
    with pytest.raises(InvalidSetting, match=message):
        Imdb(path=str(tmp_path), complete=False).check()


def test_unusable_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidSetting, match="path=None: is required: a folder with train.jsonl and test.jsonl"):
        Imdb().check()
    dataset = Imdb(path=str(write_imdb(tmp_path)))
    with pytest.raises(InvalidSetting, match="train.jsonl: has 40 of 25000 rows: .* dataset.complete=false takes it"):
        dataset.check()
    train = tmp_path / "train.jsonl"
    train.write_bytes(train.read_bytes()[:-9])
    with pytest.raises(InvalidSetting, match="line 40 is no JSON .*: is the file cut short"):
        dataset.check()
    train.write_text("\n")
    with pytest.raises(InvalidSetting, match="train.jsonl: has no rows"):
        dataset.check()
    train.unlink()
    with pytest.raises(InvalidSetting, match="has no train.jsonl; it must be"):
        dataset.check()


@pytest.mark.parametrize(("head_share", "head"), [(0.25, 3), (0.0, 0), (1.0, 12)])
def test_long_texts_keep_head_and_tail(
    tmp_path: Path, opened: Any, tokenizer: Any, head_share: float, head: int
) -> None:
    words = "red green blue black white brown yellow purple orange silver golden gray pink dark".split()
    write_rows(tmp_path / "train.jsonl", *[ROW] * 2, ROW | {"text": "blue"})
    write_rows(tmp_path / "test.jsonl", {"text": "<br />".join(words), "label": 0}, {"text": "red", "label": 0})
    dataset = Imdb(path=str(tmp_path), complete=False, max_length=14, head_share=head_share)
    text = opened(dataset).part("test").text
    expected = [*words[:head], *words[len(words) - (12 - head) :]]
    assert text.starts.tolist() == [0, 14, 17]
    assert tokenizer.convert_ids_to_tokens(text.tokens["input_ids"].tolist()) == [
        *("[CLS]", *expected, "[SEP]"),
        *("[CLS]", "red", "[SEP]"),
    ]


def test_unlabeled_rows_are_in_train_alone(tiny: Any, opened: Any, tmp_path: Path, caplog: Any) -> None:
    caplog.set_level(logging.INFO)
    dataset = tiny("imdb", unlabeled=True)
    dataset.check()
    assert "2 of 40 rows of unsup are left out: also in train or test" in caplog.text
    data, labeled = opened(dataset), opened(dataset.labeled())
    train = data.part("train")
    columns = train.text.columns
    assert len(labeled.part("train")) == 31 and len(train) == 31 + 38
    assert columns["labeled"].tolist() == [True] * 31 + [False] * 38 and set(columns["labels"][31:].tolist()) == {-100}
    for split in ("val", "test"):
        assert data.part(split).text.columns.keys() == {"labels"}
    (tmp_path / "imdb" / "unsup.jsonl").unlink()
    dataset.labeled().check()
    with pytest.raises(InvalidSetting, match="has no unsup.jsonl"):
        dataset.check()
