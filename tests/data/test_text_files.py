"""Tables of text: the rows of the named file and no others, each field as it stands, and files that leave a doubt."""

import os
from pathlib import Path

import pandas
import pytest

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


def test_quoted_line_ends_are_counted(tmp_path, caplog):
    caplog.set_level("INFO")
    text_data(tmp_path, {"train.csv": 'text,label\n"a\nb",1\n'}).check()
    assert "1 rows on 3 lines: quoted fields hold line ends" in caplog.text
