"""No training step reads a value from the device: on a GPU it would wait for all that is queued there."""

import traceback
from functools import partial
from pathlib import Path

import pytest
import pytorch_lightning as pl
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import BertConfig, BertForSequenceClassification

from sparsefront.data.split_data import NoRows, SplitData
from sparsefront.data.text import EncodedText, TextPart
from sparsefront.pruning.masked_weights import MaskedWeights
from sparsefront.tasks.classification import SequenceClassification
from sparsefront.training.fit import fit
from sparsefront.training.lightning_parts import EVERY, EpochBar
from sparsefront.training.recipe import Optimization, Recipe
from sparsefront.training.trainer import TrainerSettings

STEPS, LENGTH = EVERY - 1, 16
LAYER = "bert.encoder.layer.0.output.dense"


def bert() -> BertForSequenceClassification:
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    return BertForSequenceClassification(BertConfig(vocab_size=50, attn_implementation="sdpa", **sizes))


def text(padded: bool) -> SplitData:
    lengths = torch.arange(2 * STEPS) % 7 + 9 if padded else torch.full((2 * STEPS,), LENGTH)
    starts = torch.cat([torch.zeros(1, dtype=torch.long), lengths.cumsum(0)])
    tokens = torch.arange(int(starts[-1]), dtype=torch.int32) % 50
    columns = {"labels": torch.arange(2 * STEPS) % 2, "labeled": torch.arange(2 * STEPS) % 3 > 0}
    rows = EncodedText({"input_ids": tokens, "token_type_ids": torch.zeros_like(tokens)}, starts, columns)
    return SplitData(
        lambda split: TextPart(rows, 0, None, LENGTH) if split == "train" else NoRows(), batch_size=2, seed=0
    )


class Reads(TorchDispatchMode):
    """Where values are read in steps; not where batches are made, on the CPU."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten._local_scalar_dense.default:
            places = [f"{frame.filename}:{frame.lineno}" for frame in traceback.extract_stack()]
            if not any("fetchers.py" in place or "training/resume.py" in place for place in places):
                self.found.append(" <- ".join(reversed(places[-12:-1])))
        return func(*args, **(kwargs or {}))


class WatchSteps(pl.Callback):
    """From the first step to the end of the last."""

    def __init__(self, reads: Reads) -> None:
        self.reads = reads

    def on_train_batch_start(self, trainer, module, batch, batch_index):
        if batch_index == 0:
            self.reads.__enter__()
        elif batch_index == STEPS - 1:
            self.reads.__exit__(None, None, None)


@pytest.mark.parametrize("padded", [True, False])
@pytest.mark.parametrize("bar", [True, False])
def test_no_step_reads_a_value(tmp_path: Path, monkeypatch, padded: bool, bar: bool):
    monkeypatch.setattr("sparsefront.progress.shows", lambda: bar)
    moves = partial(EpochBar, refresh_rate=EVERY)  # as on a GPU, where it moves every few batches
    monkeypatch.setattr("sparsefront.training.lightning_parts.EpochBar", lambda **_: moves())
    net, reads = bert(), Reads()
    MaskedWeights(net, [LAYER]).set({LAYER: torch.ones(16, 32, dtype=torch.bool)})
    # AdamW of the CPU reads its own counts of steps
    recipe = Recipe(epochs=1, optimizer="sgd")
    fit(
        SequenceClassification(net, Optimization(recipe, lr=0.01, total_steps=STEPS), num_classes=2),
        text(padded),
        epochs=1,
        recipe=recipe,
        trainer=TrainerSettings(accelerator="cpu", checkpoint=False),
        loggers=[],
        directory=tmp_path,
        callbacks=(WatchSteps(reads),),
    )
    assert reads.found == []
