"""Perplexity of SmolLM2 at 50 %, pruned by this program and by plain PyTorch (`plain.py`) with the same windows.

    python -m experiments.language_models.study --model DIR --data DIR [--out FILE.csv] [--points wanda,obs]
    python -m experiments.language_models.study --tiny DIR

Every point is one run of `run.py experiment=smollm2`, in fp32 on the whole test split, or on its first `--windows`; its row goes
to the CSV as soon as it is measured. What the CSV holds is not run again. `--tiny` makes a tiny Llama and a text below DIR
instead, and takes a minute on a CPU. With the published CSV the table of README.md is written too.
"""

import argparse
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from experiments.harness.page import fill, table
from experiments.harness.rows import measure_missing, read_lines, where_and_when
from experiments.harness.runs import QUIET, folders_below, record_of
from experiments.language_models import plain, tiny
from sparsefront.data.wikitext2 import Wikitext2
from sparsefront.models.huggingface_lm import HuggingFaceLM
from sparsefront.results.record import Result

HERE = Path(__file__).resolve().parent
PUBLISHED = HERE / "smollm2.csv"
MARKS = ("<!-- perplexities -->", "<!-- end of perplexities -->")
BATCH_SIZE, EVALUATED_AT_ONCE = 8, 2
OF_FOUR = ("pattern=n_m", "pattern.m=4")
MAGNITUDE = ("importance=magnitude", "~importance.batches", "~importance.sequential")
OBS = (*MAGNITUDE, "recovery=obs_update", "recovery.reselect=true")
Prune = Callable[[nn.Module, torch.Tensor, int | None], None]
POINTS: dict[str, tuple[tuple[str, ...], tuple[Prune, int | None]]] = {
    "magnitude": (("pattern=element_wise", "~pattern.granularity", *MAGNITUDE), (plain.magnitude, None)),
    "wanda": ((), (plain.wanda, None)),
    "obs": (("pattern=element_wise", "~pattern.granularity", *OBS), (plain.sparsegpt, None)),
    "magnitude 2:4": ((*OF_FOUR, "~pattern.granularity", *MAGNITUDE), (plain.magnitude, 4)),
    "wanda 2:4": ((*OF_FOUR, "~pattern.granularity"), (plain.wanda, 4)),
    "obs 2:4": ((*OF_FOUR, "~pattern.granularity", *OBS), (plain.sparsegpt, 4)),
}
"""Name -> overrides of `experiment=smollm2`, and the same in plain PyTorch."""


class Setting:
    """Model, data and device of all points."""

    def __init__(
        self,
        model: Path,
        data: Path,
        length: int,
        folder: Path,
        *,
        windows: int | None = None,
        train_text: Path | None = None,
    ) -> None:
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.model, self.folder = HuggingFaceLM(path=str(model)), folder
        own_text = None if train_text is None else str(train_text)
        self.dataset = Wikitext2(path=str(data), sequence_length=length, train_text=own_text)
        opened = self.dataset.data_module(
            batch_size=BATCH_SIZE, seed=0, cache_dir=folder / "cache" / "data", tokenizer_from=self.model.tokenizer
        )
        self.batches = len(opened.train_dataloader())
        self.windows = {split: _windows(opened.part(split)) for split in ("train", "test")}
        self.limit = windows
        self.windows["test"] = self.windows["test"][:windows]

    def overrides(self, own: Sequence[str]) -> list[str]:
        """Of a point's run, all calibration windows once."""
        places = [f"model.path={self.model.path}", f"dataset.path={self.dataset.path}", *folders_below(self.folder)]
        always = [
            "kernel=none",
            "measure.latency=false",
            "measure.dtype=fp32",
            f"recipe.batch_size={BATCH_SIZE}",
            *QUIET,
        ]
        always += [f"measure.batch_size={EVALUATED_AT_ONCE}", f"dataset.sequence_length={self.dataset.sequence_length}"]
        if self.dataset.train_text is not None:
            always.append(f"dataset.train_text={self.dataset.train_text}")
        if self.limit is not None:
            always.append(f"measure.evaluate_limit={self.limit}")
        used = [] if any(name.startswith("importance=") for name in own) else [f"importance.batches={self.batches}"]
        used += [f"recovery.batches={self.batches}"] if "recovery=obs_update" in own else []
        return ["experiment=smollm2", *places, *always, *own, *used]

    def network(self) -> nn.Module:
        """As it is, in fp32 on the device."""
        return self.model.build(self.dataset.info).eval().to(self.device)

    def plain(self, prune: Prune, window: int | None) -> tuple[float, float]:
        """Perplexity of the plain version, and its seconds."""
        start, net = time.monotonic(), self.network()
        prune(net, self.windows["train"].to(self.device), window)
        return self.perplexity(net), time.monotonic() - start

    def perplexity(self, net: nn.Module) -> float:
        return plain.perplexity(net, self.windows["test"].to(self.device))


def _windows(part: torch.utils.data.Dataset) -> torch.Tensor:
    return part.__getitems__(list(range(len(part))))["input_ids"]


def measure_point(setting: Setting, point: str, **cells: Any) -> dict[str, Any]:
    """Perplexities of a point: the program's, and those of plain PyTorch."""
    own, (prune, window) = POINTS[point]
    start = time.monotonic()
    result = record_of(setting.overrides(own))
    if not isinstance(result, Result):
        raise SystemExit(f"{point}: {result}")
    seconds, quality = time.monotonic() - start, result.quality
    assert quality.masked is not None
    theirs, plain_seconds = setting.plain(prune, window)
    return {
        "dense": quality.dense,
        "perplexity": quality.masked,
        "standard_error": quality.masked_standard_error,
        "val_perplexity": quality.val_masked,
        "plain_dense": setting.perplexity(setting.network()),
        "plain": theirs,
        "apart": abs(quality.masked / theirs - 1),
        "seconds": seconds,
        "plain_seconds": plain_seconds,
        **where_and_when(setting.device),
    }


def page(rows: Sequence[Mapping[str, str]]) -> str:
    """The table of the page."""
    lines = []
    for row in sorted(rows, key=lambda row: -int(row["windows"])):  # the whole split first
        values = [f"{float(row[name]):.2f}" for name in ("dense", "perplexity", "plain")]
        where = [f"{row['windows']} of {row['length']}", row["calibration_windows"]]
        lines.append([row["point"], *where, *values, f"{float(row['apart']):.2%}"])
    return "\n".join(table(("50 %", "test windows", "calibration", "dense", "pruned", "plain PyTorch", "apart"), lines))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, help="folder of SmolLM2")
    parser.add_argument("--data", type=Path, help="folder with wiki.test.raw and wiki.valid.tokens")
    parser.add_argument("--tiny", type=Path, help="folder below which a tiny network and text are made")
    parser.add_argument("--out", type=Path, default=PUBLISHED)
    parser.add_argument("--length", type=int, default=1024, help="tokens of a window")
    parser.add_argument("--windows", type=int, help="of the test split, an even number; without it all")
    parser.add_argument("--train-text", type=Path, help="to calibrate on, instead of half of the valid split")
    parser.add_argument("--points", default=",".join(POINTS), help="of these, by commas")
    parser.add_argument("--folder", type=Path, default=Path(".cache/language_models"), help="of results and stages")
    asked = parser.parse_args(arguments)
    if asked.tiny is not None:
        model, data = tiny.make_llama(asked.tiny / "tiny"), tiny.make_wikitext(asked.tiny / "text")
        setting, out = Setting(model, data, 64, asked.tiny), asked.tiny / "tiny.csv"
    elif asked.model is None or asked.data is None:
        parser.error("--model and --data, or --tiny")
    else:
        own = {"windows": asked.windows, "train_text": asked.train_text}
        setting, out = Setting(asked.model, asked.data, asked.length, asked.folder, **own), asked.out
    about = {"windows": len(setting.windows["test"]), "calibration_windows": len(setting.windows["train"])}
    about |= {"length": setting.dataset.sequence_length}
    cells = [{"model": setting.model.variant, "point": point, **about} for point in asked.points.split(",")]
    measure_missing(out, cells, partial(measure_point, setting))
    if out == PUBLISHED:
        fill(HERE / "README.md", MARKS, page(read_lines(out)))


if __name__ == "__main__":
    main()
