"""From logits to perplexity."""

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sparsefront.data.split_data import SplitData
from sparsefront.data.text_windows import Windows
from sparsefront.errors import InvalidSetting
from sparsefront.measure.accuracy import evaluate
from sparsefront.recovery.distillation import prediction_loss
from sparsefront.tasks.causal_lm import CausalLM, NextTokenEvaluator, next_tokens
from sparsefront.tasks.outcomes import load_outcomes, save_outcomes

VOCABULARY = 11


class Bigrams(nn.Module):
    """The logits of a token follow from the one before alone."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(VOCABULARY, VOCABULARY)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> SimpleNamespace:
        return SimpleNamespace(logits=self.table(input_ids))


def data_of(tokens: Tensor, stride: int, batch_size: int = 3) -> SplitData:
    return SplitData(lambda split: Windows(tokens, 6, stride), batch_size=batch_size, seed=0)


@pytest.fixture
def tokens() -> Tensor:
    return torch.randint(VOCABULARY, (50,), generator=torch.Generator().manual_seed(0), dtype=torch.int32)


@pytest.mark.parametrize(("stride", "batch_size"), [(6, 3), (6, 1), (2, 4), (5, 3)])
def test_perplexity_of_all_scored_tokens(stride: int, batch_size: int, tokens: Tensor, tmp_path: Any) -> None:
    """Whatever the batches; the first window of overlapping ones is asked for more tokens than the others."""
    net = Bigrams()
    found = evaluate(
        CausalLM(net), net, data_of(tokens, stride, batch_size), "test", device=torch.device("cpu"), dtype=torch.float32
    )
    ids, windows = tokens.long(), (50 - 6) // stride + 1
    scored = [
        i
        for w in range(windows)
        for i in range(w * stride + 1, w * stride + 6)
        if w == 0 or i >= w * stride + 6 - stride
    ]
    if stride < 6:
        assert len(scored) == len(set(scored))
    losses = F.cross_entropy(net.table(ids[:-1]).detach(), ids[1:], reduction="none")[[i - 1 for i in scored]].double()
    perplexity = math.exp(losses.mean())
    assert found.metrics == {"perplexity": pytest.approx(perplexity, rel=1e-6)} and found.samples == windows
    save_outcomes(tmp_path / "outcomes.npz", {"dense": found.outcomes})
    outcomes = load_outcomes(tmp_path / "outcomes.npz")["dense"]
    outcomes.require_metric()
    assert outcomes.metric_over(np.arange(windows)) == pytest.approx(found.metrics["perplexity"], rel=1e-12)
    if stride == 6:
        spread = losses.view(windows, 5).mean(1).std() / math.sqrt(windows)
        assert found.standard_errors["perplexity"] == pytest.approx(float(perplexity * spread), rel=1e-6)


def test_padding_is_no_target() -> None:
    ids = torch.tensor([[3, 4, 5, 6], [7, 8, 0, 0]])
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]])
    assert next_tokens({"input_ids": ids}).tolist() == [[4, 5, 6], [8, 0, 0]]
    assert next_tokens({"input_ids": ids, "attention_mask": mask}).tolist() == [[4, 5, 6], [8, -100, -100]]
    scored = {"input_ids": ids, "scored": torch.tensor([3, 1])}
    assert next_tokens(scored).tolist() == [[4, 5, 6], [-100, -100, 0]]


def test_outputs_that_are_not_finite(tokens: Tensor) -> None:
    batch = Windows(tokens, 6, 6).__getitems__([0, 1])
    logits = torch.zeros(2, 6, VOCABULARY)
    logits[1, 2, 3] = torch.nan
    evaluator = NextTokenEvaluator()
    evaluator.update(SimpleNamespace(logits=logits), batch)
    with pytest.raises(InvalidSetting, match="outputs=not finite in 1 of 2 windows: must be finite"):
        evaluator.compute()


def test_padding_is_neither_taught_nor_smoothed():
    task, rows = CausalLM(nn.Linear(1, 1)), torch.randn(2, 1, 5, VOCABULARY)
    task.label_smoothing = 0.2
    ids = torch.arange(5)[None]
    losses = []
    for batch in ({"input_ids": ids[:, :3]}, {"input_ids": ids, "attention_mask": (ids < 3).long()}):
        student, teacher = (SimpleNamespace(logits=one[:, : batch["input_ids"].shape[1]]) for one in rows)
        losses.append((prediction_loss(task, student, teacher, batch, 2.0), task.label_loss(student, batch)))
    torch.testing.assert_close(*losses)
