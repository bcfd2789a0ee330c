"""Does a held-out part leak? Two baselines that know nothing but words, on held-out rows and on dev.

    python -m experiments.splits.leak_probe --data DIR [--out FILE.csv]

DIR holds SST-2 and MRPC as GLUE distributes them. The probe gives each text the label of the training text with which it shares
most 1- to 3-grams; the bigram baseline is a logistic regression on 1- and 2-grams. Where held-out rows are of the sentences that
were trained on, the probe reads their labels off, and is far better on them than on dev. Both are taken of the split by groups
and of the split by rows, each drawn three times, on at most 2,000 held-out rows. Writes probe.csv and the table of README.md.
"""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from unittest.mock import patch

import numpy as np

from experiments.harness.page import fill, table
from experiments.harness.rows import Row, made_by, text, write
from sparsefront.data import base
from sparsefront.data.glue import Glue, GlueRow, read_tsv

HERE = Path(__file__).resolve().parent
TASKS = ("sst2", "mrpc")
DRAWS = (base.SPLIT_SEED, 1, 2)
COLUMNS = ("task", "split", "draw", "part", "rows", "train_rows", "probe", "bigrams", "date", "python")
COLUMNS += ("numpy", "scikit-learn", "device")
MARKS = ("<!-- probe -->", "<!-- end of probe -->")
MOST_ROWS = 2000
CHUNK = 256
"""Texts that are compared with all training texts at a time."""


def nearest_labels(train: Sequence[str], labels: np.ndarray, texts: Sequence[str]) -> np.ndarray:
    """The label of the nearest training text: the cosine of the sets of words, pairs and triples of words; the first of equals.

    Args:
        labels: [train].
    Returns:
        [texts].
    """
    from sklearn.feature_extraction.text import CountVectorizer
    from sklearn.preprocessing import normalize

    grams = CountVectorizer(ngram_range=(1, 3), binary=True, token_pattern=r"\S+", dtype=np.float32)
    known = normalize(grams.fit_transform(train)).T.tocsr()
    asked = normalize(grams.transform(texts))
    chunks = (asked[begin : begin + CHUNK] @ known for begin in range(0, len(texts), CHUNK))
    return labels[np.concatenate([np.asarray(shared.argmax(axis=1)).ravel() for shared in chunks])]


def bigram_labels(train: Sequence[str], labels: np.ndarray, texts: Sequence[str]) -> np.ndarray:
    """What a logistic regression on single words and pairs of words says of the texts; shapes as in `nearest_labels`."""
    from sklearn.feature_extraction.text import CountVectorizer
    from sklearn.linear_model import LogisticRegression

    grams = CountVectorizer(ngram_range=(1, 2), binary=True, token_pattern=r"\S+", dtype=np.float32)
    model = LogisticRegression(solver="liblinear").fit(grams.fit_transform(train), labels)
    return model.predict(grams.transform(texts))


BASELINES = {"probe": nearest_labels, "bigrams": bigram_labels}


def texts_of(rows: Sequence[GlueRow]) -> tuple[list[str], np.ndarray]:
    """One text per row, both sentences of a pair, and the labels."""
    return [" ".join(filter(None, (row.first, row.second))) for row in rows], np.asarray([row.label for row in rows])


def measure_leak(settings: Glue) -> Iterator[Row]:
    """A row for the held-out part and one for dev, of each draw of the split."""
    files = settings.files()
    rows, dev = (read_tsv(files[part], settings.layout) for part in ("train", "dev"))
    for draw in DRAWS:
        with patch.object(base, "SPLIT_SEED", draw):
            divided = settings.source(HERE).division
        asked = np.random.RandomState(draw).permutation(divided.val)[:MOST_ROWS]
        train, held = ([rows[row] for row in part] for part in (divided.train, asked))
        (texts, labels), (held_texts, right) = texts_of(train), texts_of([*held, *dev])
        correct = {name: baseline(texts, labels, held_texts) == right for name, baseline in BASELINES.items()}
        for part, chosen in (("held out", slice(len(held))), ("dev", slice(len(held), None))):
            yield {
                "task": settings.task,
                "split": settings.split_version or "",
                "draw": str(draw),
                "part": part,
                "rows": str(len(right[chosen])),
                "train_rows": str(len(texts)),
                **{name: text(float(rights[chosen].mean())) for name, rights in correct.items()},
                **made_by("numpy", "scikit-learn"),
                "device": "cpu",
            }


def page(rows: Sequence[Row]) -> str:
    """The table of the page, in percent, means over the draws."""
    lines = []
    for task, split in dict.fromkeys((row["task"], row["split"]) for row in rows):
        cells = [task, split]
        for column in BASELINES:
            held, dev = (mean_of(rows, task, split, part, column) for part in ("held out", "dev"))
            cells += [f"{held:.1f}", f"{dev:.1f}", f"{held - dev:+.1f}"]
        lines.append(cells)
    head = ("task", "split", "probe, held out", "dev", "difference", "bigrams, held out", "dev", "difference")
    return "\n".join(table(head, lines))


def mean_of(rows: Sequence[Row], task: str, split: str, part: str, column: str) -> float:
    """In percent, over the draws."""
    chosen = [row for row in rows if (row["task"], row["split"], row["part"]) == (task, split, part)]
    return 100 * fmean(float(row[column]) for row in chosen)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder that holds SST-2/ and MRPC/")
    parser.add_argument("--out", type=Path, default=HERE / "probe.csv")
    arguments = parser.parse_args()
    rows: list[Row] = []
    for task in TASKS:
        for split_by in ("rows", "groups"):
            settings = replace(Glue(task=task, path=str(arguments.data)), split_by=split_by)
            for row in measure_leak(settings):
                print(", ".join(row[name] for name in COLUMNS[:8]), flush=True)
                rows.append(row)
    write(arguments.out, COLUMNS, rows)
    if arguments.out == HERE / "probe.csv":
        fill(HERE / "README.md", MARKS, page(rows))


if __name__ == "__main__":
    main()
