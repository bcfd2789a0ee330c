"""The probe of leaks, on phrases whose labels nothing but the phrases around them tells."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from experiments.harness.rows import Row
from experiments.splits import leak_probe
from sparsefront.data.glue import Glue

WORDS = [f"w{number}" for number in range(300)]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SST-2 of random sentences with random labels: train with parts of each sentence, dev with other sentences."""
    folder, noise = tmp_path_factory.mktemp("glue"), np.random.RandomState(0)
    (folder / "SST-2").mkdir()
    lines: dict[str, list[str]] = {"train": [], "dev": []}
    for part, count in (("train", 150), ("dev", 150)):
        for _ in range(count):
            words, label = noise.choice(WORDS, 12), noise.randint(2)
            spans = [(0, 12), (0, 6), (6, 12), (3, 9), (2, 5)] if part == "train" else [(0, 12)]
            lines[part] += [f"{' '.join(words[begin:end])} \t{label}" for begin, end in spans]
    for part, found in lines.items():
        (folder / "SST-2" / f"{part}.tsv").write_text("\n".join(["sentence\tlabel", *found]) + "\n")
    return folder


def gap(data: Path, split_by: str) -> float:
    """Points of the probe between the held-out part and dev, mean of the draws."""
    rows: list[Row] = list(leak_probe.measure_leak(replace(Glue(path=str(data)), split_by=split_by)))
    assert len(rows) == 2 * len(leak_probe.DRAWS) and {row["part"] for row in rows} == {"held out", "dev"}
    split = rows[0]["split"]
    held, dev = (leak_probe.mean_of(rows, "sst2", split, part, "probe") for part in ("held out", "dev"))
    return held - dev


def test_probe_finds_the_leak(data: Path) -> None:
    assert gap(data, "rows") > 25
    assert abs(gap(data, "groups")) < 12  # 75 held-out rows of a coin: a standard error of six points, over three draws


def test_nearest_is_by_shared_words() -> None:
    train, labels = ["a b c d", "d c b a", "x y z"], np.array([0, 1, 2])
    assert leak_probe.nearest_labels(train, labels, ["b c d", "d c b", "z", "y z q"]).tolist() == [0, 1, 2, 2]
