"""WikiText-2: what its tokenised file has lost is given back, and its windows cover the text."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from experiments.language_models.tiny import make_text
from sparsefront.data.text_windows import Windows
from sparsefront.data.wikitext2 import detokenize
from sparsefront.errors import InvalidSetting


@pytest.mark.parametrize(
    ("tokenised", "text"),
    [
        (" 1 @,@ 000 km ( 3 @.@ 5 mi ) of well @-@ known <unk> roads .", " 1,000 km (3.5 mi) of well-known roads."),
        (" He said : \" it 's not , I do n't know \" ; <unk> !", " He said: \"it's not, I don't know\";!"),
        (" = Heading = \n \n 50 % of £ 3 \n", " = Heading = \n \n 50% of £3 \n"),
    ],
)
def test_detokenised_text(tokenised: str, text: str) -> None:
    assert detokenize(tokenised) == text


@pytest.mark.parametrize("stride", [4, 3, 1])
def test_windows_score_tokens_once(stride: int) -> None:
    rows = Windows(torch.arange(11, dtype=torch.int32), 4, stride)
    batch = rows.__getitems__(list(range(len(rows))))
    asked = [row[-count:].tolist() for row, count in zip(batch["input_ids"], batch["scored"].tolist(), strict=True)]
    flat = [token for row in asked for token in row]
    left_out = {4: {4}, 3: set(), 1: set()}[stride]  # the first of a window has nothing before it
    assert flat == [token for token in range(1, (len(rows) - 1) * stride + 4) if token not in left_out]


def test_splits_of_the_files(tiny: Any, opened: Any, tokenizer: Any, tmp_path: Path) -> None:
    settings = tiny("wikitext2")
    source = opened(settings).source
    folder = Path(settings.path)
    assert source.text("test") == (folder / "wiki.test.raw").read_text()
    assert "<unk>" in (folder / "wiki.valid.tokens").read_text() and "@" not in source.text("train") + source.text(
        "val"
    )
    before = settings.fingerprint()
    (folder / "wiki.test.raw").write_bytes((folder / "wiki.test.raw").read_bytes().replace(b"\n", b"\r\n"))
    assert source.text("test") == make_text(1), "line ends of another system are no tokens"
    (folder / "wiki.valid.raw").write_text(" = raw = \n 1 @,@ 000 \n = more = \n words \n")
    assert source.text("train") == " = raw = \n 1 @,@ 000 \n", "a raw file stays as it is"
    own = tmp_path / "own.txt"
    own.write_text("my own words " * 20)
    other = tiny("wikitext2", train_text=str(own))
    assert opened(other).source.text("train") == own.read_text() and other.fingerprint() != before
    assert opened(other).source.text("val") == source.text("val")


def test_bad_input_names_the_key(tiny: Any, opened: Any, tmp_path: Path) -> None:
    short = tmp_path / "short.txt"
    short.write_text("few words here, less than a window " * 2)
    binary = tmp_path / "binary"
    binary.write_bytes(bytes(range(128, 256)))
    cases = [
        ({"path": None}, "path=None: set dataset.path to a folder with wiki.test.raw and"),
        ({"path": str(tmp_path)}, f"path={tmp_path}: has no wiki.test.raw; set dataset.path to"),
        ({"train_text": "/nowhere"}, "train_text=/nowhere: does not exist; set dataset.train_text to a text file"),
        ({"train_text": str(tmp_path)}, f"train_text={tmp_path}: is no file"),
        ({"sequence_length": 100_000}, "sequence_length=100000: train .* has .* bytes, less than one window"),
        ({"sequence_length": 4}, "sequence_length=4: "),
        ({"stride": 17}, "stride=17: at most sequence_length=16"),
        ({"stride": 0}, "stride=0: "),
    ]
    for changed, message in cases:
        with pytest.raises(InvalidSetting, match=message):
            replace(tiny("wikitext2"), **changed).check()
    for changed, message in (
        ({"train_text": str(short), "sequence_length": 64}, r"dataset.sequence_length=64: train \(short.txt\) has"),
        ({"train_text": str(binary)}, "dataset.train_text=.*binary: line 1 is not UTF-8"),
    ):
        with pytest.raises(InvalidSetting, match=message):
            opened(tiny("wikitext2", **changed)).part("train")
