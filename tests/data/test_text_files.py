"""Tables of text: the rows of the named file and no others, each field as it stands, and files that leave a doubt.

Tokenized once, then read; padded as asked.
"""

import copy
import importlib.metadata
import os
from pathlib import Path
from typing import Any

import pandas
import pytest
import torch

from sparsefront.data import text
from sparsefront.data.glue import GlueSource
from sparsefront.data.text_columns import TextColumns
from sparsefront.errors import InvalidSetting

ROWS = "text,label\ngood film,1\nbad film,0\n"
FRAME = pandas.DataFrame({"text": ["good film", "bad film"], "label": [1, 0]})
FILMS, BINARY = ["good film", "bad film"], ("0", "1")


def text_data(folder: Path, files: dict[str, str | bytes | pandas.DataFrame]) -> TextColumns:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, pandas.DataFrame):
            content.to_parquet(folder / name)
        else:
            (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)
    return TextColumns(path=str(folder), test_split="train")


SHARDS = {f"data/train-0000{part}-of-00002.parquet": FRAME[part : part + 1] for part in (0, 1)}
OBJECTS = '{"text": "a\u2028b", "label": true}\n\n{"text": "c", "label": false}'
LATIN = ROWS.replace("bad", "b\xe4d")


def lines(*labels: str) -> str:
    """JSON lines with the texts a, b, ..."""
    return "".join(f'{{"text": "{text}", "label": {label}}}\n' for text, label in zip("abcdef", labels))


# files -> texts and classes of train
READ = {
    "others beside": ({"train.csv": ROWS, "train_old.csv": LATIN, "train-backup.csv": "x"}, FILMS, BINARY),
    "tsv": ({"train.tsv": ROWS.replace(",", "\t")}, FILMS, BINARY),
    "json": ({"train.json": FRAME.to_json(orient="records")}, FILMS, BINARY),
    "lines in json": ({"train.json": FRAME.to_json(orient="records", lines=True)}, FILMS, BINARY),
    "jsonl": ({"train.jsonl": OBJECTS}, ["a\u2028b", "c"], ("False", "True")),
    "parquet": ({"train.parquet": FRAME}, FILMS, BINARY),
    "shards": (SHARDS, FILMS, BINARY),
    "quotes in tsv": ({"train.tsv": 'text\tlabel\n"a\tx\nb "c"\ty\n"d\tx\n'}, ['"a', 'b "c"', '"d'], ("x", "y")),
    "quotes in csv": (
        {"train.csv": 'text,label\r\n"a, ""b""\nc",x\r\nd "e",y\r\n\r\n'},
        ['a, "b"\nc', 'd "e"'],
        ("x", "y"),
    ),
    "mark of UTF-8": ({"train.csv": b"\xef\xbb\xbf" + ROWS.encode()}, FILMS, BINARY),
    "words for nothing": ({"train.csv": "text,label\nNA,None\nnull,NaN\n"}, ["NA", "null"], ("NaN", "None")),
    "leading zeros": ({"train.csv": "text,label\na,01\nb,1\nc,10\nd,2\n"}, list("abcd"), ("01", "1", "2", "10")),
    "numbers of two types": ({"train.jsonl": lines("1", "1.0", "0")}, list("abc"), BINARY),
    "scores": ({"train.csv": "text,label\na,1\nb,0.5\n"}, ["a", "b"], ()),
    "scores in json": ({"train.jsonl": lines("1", "0.5")}, ["a", "b"], ()),
    "longer than csv's limit": ({"train.csv": f"text,label\n{'a' * 200_000},1\n"}, ["a" * 200_000], ("1",)),
}


@pytest.mark.parametrize(("files", "texts", "classes"), READ.values(), ids=READ)
@pytest.mark.parametrize("name", ["plain", "runs[1] *?"])
def test_table_files_are_read_whole(tmp_path, files, texts, classes, name):
    settings = text_data(tmp_path / name, files)
    settings.check()
    assert (list(settings.source(tmp_path).texts()), settings.class_names) == (texts, classes)


def test_table_rows_follow_their_file(tmp_path):
    """A rewritten file of equal size and time stamp is another one; a file beside it is none of the data."""
    seen = []
    for content in ("text,label\nold,1\n", "text,label\nnew,1\n"):
        settings = text_data(tmp_path, {"train.csv": content, "train_old.csv": content})
        os.utime(tmp_path / "train.csv", (1e9, 1e9))
        seen.append((settings.content(), list(settings.source(tmp_path).texts())))
    assert seen[0][0] != seen[1][0] and [texts for _, texts in seen] == [["old"], ["new"]]
    (tmp_path / "train_old.csv").write_text("text,label\n")
    assert settings.content() == seen[1][0]
    (tmp_path / "train.csv").write_text("text,label\nnot,1\n")
    with pytest.raises(InvalidSetting, match="path=.*: train has changed since it was first read"):
        next(settings.source(tmp_path).texts())


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
def test_tokens_follow_their_causes(
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


REFUSED = {
    "two files": ({"train.csv": ROWS, "train.tsv": ""}, "holds more than one file of a split: train.csv, train.tsv"),
    "a shard missing": ({"data/train-00000-of-00002.parquet": FRAME}, "holds 1 of 2 shards: train-00000"),
    "latin-1": ({"train.csv": LATIN.encode("latin-1")}, r"train.csv: line 3 is not UTF-8 \(byte 0xe4\).*LATIN1"),
    "utf-16": ({"train.tsv": LATIN.encode("utf-16")}, "train.tsv: is UTF-16"),
    "utf-16 without a mark": ({"train.jsonl": LATIN.encode("utf-16-le")}, "train.jsonl: is UTF-16"),
    "open quotes": ({"train.csv": 'text,label\n"a,1\nb,0\n"c,1\n'}, "train.csv: line 4 is not CSV"),
    "quotes to the end": ({"train.csv": 'text,label\n"a,1\nb,0\n'}, "train.csv: line 3 is not CSV"),
    "fields": ({"train.csv": "text,label\na,b,1\n"}, "train.csv: line 2 has 3 fields instead of 2"),
    "columns twice": ({"train.csv": "text,label,text\na,1,b\n"}, "train.csv: has several columns text"),
    "no json": ({"train.jsonl": lines("1") + '{"text"\n'}, "train.jsonl: line 2 is no JSON"),
    "no objects": ({"train.jsonl": lines("1") + "3\n"}, "train.jsonl: line 2 is no JSON object"),
    "no parquet": ({"train.parquet": "x"}, "train.parquet: cannot be read"),
    "labels of two types": ({"train.jsonl": lines("1", '"1"')}, "label=label: holds int and str"),
    "a score missing": ({"train.csv": "text,label\na,0.5\nb,NA\n"}, "label=label: holds 'NA' and '0.5'"),
    "values missing": ({"train.jsonl": lines("1", "NaN", "null")}, "label=label: 2 of 3 rows of train have no value"),
}


@pytest.mark.parametrize(("files", "message"), REFUSED.values(), ids=REFUSED)
def test_table_files_are_refused_briefly(tmp_path, files, message):
    with pytest.raises(InvalidSetting, match=message) as caught:
        text_data(tmp_path, files).check()
    assert "\n" not in str(caught.value)
