"""Tokenized once, then read; padded as asked."""

import copy
import importlib.metadata
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from sparsefront.data import base, squad, text
from sparsefront.data.glue import Glue, GlueSource
from sparsefront.data.text import EncodedText, TextPart, tokenizer_digest

TEXT = EncodedText(
    tokens={"input_ids": torch.arange(1, 13, dtype=torch.int32), "token_type_ids": torch.ones(12, dtype=torch.uint8)},
    starts=torch.tensor([0, 3, 12]),
    columns={"labels": torch.tensor([1, 0])},
)


def test_second_run_does_not_tokenize(tiny: Any, opened: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("glue", "squad"):
        settings = tiny(name)
        first = opened(settings)
        first.setup()
        with monkeypatch.context() as patch:
            patch.setattr(type(first.source), "encode", lambda *_: pytest.fail("tokenized again"))
            second = opened(settings)
            second.setup()
        for split in ("train", "val", "test"):
            one, other = (data.part(split).text.to_tensors() for data in (first, second))
            assert one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)


@pytest.mark.parametrize("changed", ["file", "max_length", "valid_fraction", "tokenizer", "its version", "code"])
def test_whatever_determines_the_rows_makes_new_ones(
    changed: str, tiny: Any, opened: Any, tokenizer: Any, edit: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = tiny("glue")
    opened(settings).part("train")
    encoded: list[str] = []
    encode = GlueSource.encode
    monkeypatch.setattr(
        GlueSource, "encode", lambda self, split, tok: encoded.append(split) or encode(self, split, tok)
    )
    if changed == "file":
        with settings.files()["train"].open("a") as lines:
            lines.write("one more\t1\n")
    elif changed == "tokenizer":
        other = copy.deepcopy(tokenizer)
        other.add_tokens(["greenish"])
        settings.data_module(
            batch_size=2, seed=0, cache_dir=tmp_path / "cache", tokenizer_from=lambda texts: other
        ).part("train")
    elif changed == "its version":
        installed = importlib.metadata.version
        monkeypatch.setattr(
            importlib.metadata, "version", lambda name: "99" if name == "tokenizers" else installed(name)
        )
    elif changed == "code":
        edit(Path(text.__file__), "\n\n\n", "\n\nADDED = 1\n\n\n")
    if changed in ("max_length", "valid_fraction"):
        settings = tiny("glue", **{changed: {"max_length": 16, "valid_fraction": 0.3}[changed]})
    opened(settings).part("train")
    assert encoded == ["train"]


def test_padding_and_place_do_not_make_new_rows(tiny: Any, opened: Any, tmp_path: Path) -> None:
    for settings in (tiny("glue"), tiny("glue", pad="max_length"), tiny("glue", num_workers=2)):
        opened(settings).part("train")
    assert len(list((tmp_path / "cache" / "features").glob("*.safetensors"))) == 1


@pytest.mark.parametrize(
    ("module", "counts"),
    [(squad, False), (base, True)],
    ids=["of another", "of the split"],
)
def test_only_code_that_makes_rows_of_this_text_counts(
    module: ModuleType, counts: bool, tiny: Any, opened: Any, edit: Any, tmp_path: Path
) -> None:
    opened(tiny("glue")).part("train")
    edit(Path(module.__file__), "\n\n\n", "\n\nADDED = 1\n\n\n")
    opened(tiny("glue")).part("train")
    assert len(list((tmp_path / "cache" / "features").glob("*.safetensors"))) == 1 + counts


def test_a_tokenizer_that_cuts_on_the_other_side_makes_rows_of_its_own(
    tiny: Any, tokenizer: Any, tmp_path: Path
) -> None:
    settings = tiny("glue", max_length=8)
    rows = []
    for side in ("right", "left"):
        other = copy.deepcopy(tokenizer)
        other.truncation_side = side
        data = settings.data_module(batch_size=2, seed=0, cache_dir=tmp_path, tokenizer_from=lambda texts, it=other: it)
        rows.append(data.part("train").text)
    assert not torch.equal(rows[0].tokens["input_ids"], rows[1].tokens["input_ids"])


def test_digest_of_a_tokenizer_does_not_follow_its_last_call(tokenizer: Any) -> None:
    before = tokenizer_digest(tokenizer)
    tokenizer(["a b c"], truncation=True, max_length=3, padding="max_length")
    assert tokenizer_digest(tokenizer) == before


def test_texts_are_read_only_by_a_tokenizer_that_learns(tiny: Any, tokenizer: Any, tmp_path: Path) -> None:
    settings = tiny("glue", task="mrpc")
    seen: list[str] = []

    def learns(texts: Any) -> Any:
        seen.extend(texts)
        return tokenizer

    settings.data_module(batch_size=2, seed=0, cache_dir=tmp_path, tokenizer_from=learns).part("train")
    assert len(seen) == 80 and seen[:2] == ['red "train 0', "the train 0 is it"]
    unread = Glue(task="mrpc", path=settings.path).source(tmp_path)
    Path(settings.path).rename(tmp_path / "gone")
    unread.texts()


def test_text_needs_a_tokenizer(tiny: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="tokenizer_from"):
        tiny("glue").data_module(batch_size=2, seed=0, cache_dir=tmp_path)


def test_rows_survive_the_way_through_a_file(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    save_file(TEXT.to_tensors(), tmp_path / "rows")
    again = EncodedText.from_tensors(load_file(tmp_path / "rows"))
    assert torch.equal(again.starts, TEXT.starts)
    assert all(torch.equal(again.tokens[name], TEXT.tokens[name]) for name in TEXT.tokens)
    assert torch.equal(again.columns["labels"], TEXT.columns["labels"])


@pytest.mark.parametrize(
    ("width", "max_length", "rows", "expected"),
    [(None, 64, [0], 8), (None, 64, [0, 1], 16), (None, 10, [1], 10), (20, 20, [0], 20)],
)
def test_width_of_a_batch(width: int | None, max_length: int, rows: list[int], expected: int) -> None:
    batch = TextPart(TEXT, pad_token_id=99, width=width, max_length=max_length).__getitems__(rows)
    assert batch["input_ids"].shape == (len(rows), expected)


def test_what_stands_behind_the_end() -> None:
    batch = TextPart(TEXT, pad_token_id=99, width=None, max_length=64).__getitems__([1, 0])
    assert batch["input_ids"][1].tolist() == [1, 2, 3] + [99] * 13
    assert batch["attention_mask"][1].tolist() == [1] * 3 + [0] * 13
    assert batch["token_type_ids"][1].tolist() == [1] * 3 + [0] * 13
    assert batch["labels"].tolist() == [0, 1]
