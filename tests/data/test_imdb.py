"""IMDb: rows that also stand in test, files with rows missing, and texts that are cut in the middle."""

import logging
from pathlib import Path
from typing import Any

import pytest
from tiny_files import write_imdb

from sparsefront.data.imdb import Imdb
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
