"""IMDb: rows that also stand in test, files with rows missing, and texts that are cut in the middle."""

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_files import write_imdb

from sparsefront.artifacts.content_digest import remembering
from sparsefront.data.imdb import Imdb, ImdbRows
from sparsefront.data.text import tokenize
from sparsefront.errors import InvalidSetting


@pytest.mark.parametrize("settings", [{}, {"split_by": "rows"}, {"valid_fraction": 0.0}])
def test_rows_of_test_are_dropped(tiny: Any, tmp_path: Path, caplog: Any, settings: dict[str, Any]) -> None:
    caplog.set_level(logging.INFO)
    dataset = tiny("imdb", **settings)
    dataset.check()
    assert "1 of 40 rows of train are left out: also in test" in caplog.text
    division = dataset.division(tmp_path)
    assert division.dropped.tolist() == [0] and division.rows == 40
    assert len(division.val) == (0 if "valid_fraction" in settings else 8)


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


def test_unlabeled_rows_of_train(tiny: Any, opened: Any, tmp_path: Path, caplog: Any) -> None:
    caplog.set_level(logging.INFO)
    dataset = tiny("imdb", unlabeled=True)
    dataset.check()
    assert "2 of 40 rows of unsup are left out: also in train or test" in caplog.text
    data, labeled = opened(dataset), opened(dataset.drop_unlabeled())
    train = data.part("train")
    columns = train.text.columns
    assert len(labeled.part("train")) == 31 and len(train) == 31 + 38
    assert columns["labeled"].tolist() == [True] * 31 + [False] * 38 and set(columns["labels"][31:].tolist()) == {-100}
    for split in ("val", "test"):
        assert data.part(split).text.columns.keys() == {"labels"}
    (tmp_path / "imdb" / "unsup.jsonl").unlink()
    dataset.drop_unlabeled().check()
    with pytest.raises(InvalidSetting, match="has no unsup.jsonl"):
        dataset.check()


def test_each_text_is_tokenized_once(tiny: Any, opened: Any, monkeypatch: Any) -> None:
    """With and without the rows of unsup; those of the latter are next to the others."""
    splits, encode = [], ImdbRows.encode
    monkeypatch.setattr(
        ImdbRows, "encode", lambda self, split, tokenizer: (splits.append(split), encode(self, split, tokenizer))[1]
    )
    for unlabeled in (False, True, False):
        data = opened(tiny("imdb", unlabeled=unlabeled))
        data.setup()
        if not unlabeled:
            labeled = data.part("train").text
    assert sorted(splits) == ["test", "train", "unsup", "val"]
    text = opened(tiny("imdb", unlabeled=True)).part("train").text.first(len(labeled))
    assert all(torch.equal(text.tokens[name], values) for name, values in labeled.tokens.items())


@pytest.mark.parametrize("pairs", [False, True])
@pytest.mark.parametrize("side", ["left", "right"])
def test_tokens_are_the_tokenizers(pairs: bool, side: str, tokenizer: Any) -> None:
    """Truncated, or with nothing of the beginning: next to what the tokenizer gives for each row."""
    tokenizer.truncation_side = side
    firsts, seconds = ["a good film", "a bad film " * 9, "bad"], ["bad " * 9, "good " * 9, "film"]
    rows = list(zip(firsts, seconds, strict=True)) if pairs else [(first,) for first in firsts]
    texts = (firsts, seconds if pairs else None)
    how = {"tokenizer": tokenizer, "max_length": 12, "columns": {}, "description": ""}
    cut, end = tokenize(*texts, **how), tokenize(*texts, **how, head_share=0.0)
    for row, text in enumerate(rows):
        expected = tokenizer(*text, truncation=True, max_length=12, return_token_type_ids=True)
        for name, values in cut.tokens.items():
            assert values[cut.starts[row] : cut.starts[row + 1]].tolist() == expected[name]
        whole, own = tokenizer(*text)["input_ids"], end.tokens["input_ids"][end.starts[row] : end.starts[row + 1]]
        assert len(own) == min(12, len(whole)) and (pairs or own.tolist() == [whole[0], *whole[1:][-11:]])


def test_files_are_checked_once(tiny: Any, tmp_path: Path, caplog: Any, monkeypatch: Any) -> None:
    caplog.set_level(logging.INFO)
    for _ in range(2):
        with remembering(tmp_path / "digests.json"):
            tiny("imdb").check()
        monkeypatch.setattr(ImdbRows, "read", lambda *_: pytest.fail("read again"))
    assert caplog.text.count("1 of 40 rows of train are left out: also in test") == 2
