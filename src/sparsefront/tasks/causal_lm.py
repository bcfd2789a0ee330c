"""The next token of a text."""

import math
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from pytorch_lightning import LightningDataModule
from torch import Tensor, nn

from sparsefront.errors import InvalidSetting
from sparsefront.tasks.base import MASK, Batch, Optimizes, Task
from sparsefront.tasks.outcomes import Outcomes, error_of_mean, samples_digest

# Which tokens of a batch are predicted, and what a network says of each.

IGNORED = -100
"""The target of a token that nothing is asked of."""
SCORED = "scored"


def next_tokens(batch: Batch) -> Tensor:
    """What each token but the last is followed by, int64 [B, T - 1]; `IGNORED` before padding, and in front of the last `scored`
    tokens of a row.

    Args:
        batch: `input_ids` int64 [B, T], T at least 2; `attention_mask` [B, T] where rows are padded; `scored` int64 [B] where
            rows repeat tokens that a row before was asked for.
    """
    targets = batch["input_ids"][:, 1:]
    if MASK in batch:
        targets = targets.masked_fill(batch[MASK][:, 1:] == 0, IGNORED)
    if SCORED in batch:
        first = targets.shape[1] - batch[SCORED]
        targets = targets.masked_fill(torch.arange(targets.shape[1], device=targets.device) < first[:, None], IGNORED)
    return targets


class CausalLM(Task):
    """Cross-entropy of the next token, and perplexity: e to the mean of it over all scored tokens.

    The net is called by Hugging Face's names and returns an output with `logits` [B, T, vocabulary].
    """

    kind: ClassVar[str] = "causal_lm"
    metric_name = "perplexity"

    @classmethod
    def for_dataset(cls, net: nn.Module, dataset: Any, optimization: Optimizes | None = None) -> "CausalLM":
        return cls(net, optimization)

    def net_inputs(self, batch: Batch) -> Batch:
        return {name: batch[name] for name in ("input_ids", MASK) if name in batch}

    def loss(self, output: Any, batch: Batch) -> Tensor:
        targets = next_tokens(batch)
        return F.cross_entropy(output.logits[:, :-1].flatten(0, 1).float(), targets.flatten(), ignore_index=IGNORED)

    def logits(self, output: Any) -> tuple[Tensor, ...]:
        return (output.logits.flatten(0, 1),)

    def evaluator(self, data: LightningDataModule | None, split: str) -> "NextTokenEvaluator":
        return NextTokenEvaluator()


class NextTokenEvaluator:
    """Perplexity over rows of text.

    Logits are reduced where they are, in fp32, a row at a time: those of one row of 1,024 tokens take 200 MB.
    """

    reduces_outputs = True

    def __init__(self) -> None:
        self._seen: list[
            tuple[Tensor, Tensor]
        ] = []  # of each batch: sums of cross-entropies, float64 [B], and tokens [B]
        self._rows: list[Tensor] = []

    @torch.no_grad()
    def update(self, output: Any, batch: Batch) -> None:
        logits = output.logits
        targets = next_tokens(batch).to(logits.device)
        sums = [
            F.cross_entropy(row[:-1].float(), wanted, ignore_index=IGNORED, reduction="sum").double()
            for row, wanted in zip(logits, targets, strict=True)
        ]
        self._rows.append(batch["input_ids"])
        self._seen.append((torch.stack(sums), (targets != IGNORED).sum(1)))

    def compute(self) -> dict[str, float]:
        """As `Evaluator.compute`.

        Raises:
            InvalidSetting: outputs that are not finite, which predict nothing.
        """
        from torchmetrics import MeanMetric

        sums, tokens = self._gathered()
        if undefined := int((~sums.isfinite()).sum()):
            allowed = "must be finite: look for NaN in the weights, or values too large for the dtype (measure.dtype)"
            raise InvalidSetting("outputs", f"not finite in {undefined} of {self.samples} windows", allowed)
        mean = MeanMetric().to(sums.device).set_dtype(torch.float64)  # in this order: `to` goes back to fp32
        mean.update(sums / tokens, tokens)
        return {CausalLM.metric_name: math.exp(float(mean.compute()))}

    @property
    def samples(self) -> int:
        return sum(len(tokens) for _, tokens in self._seen)

    def standard_errors(self) -> dict[str, float]:
        """As `Evaluator.standard_errors`: to first order, that of the mean cross-entropy times the perplexity."""
        return {name: value * error_of_mean(self._shares()) for name, value in self.compute().items()}

    def outcomes(self, metric: str) -> Outcomes:
        """As `Evaluator.outcomes`: the mean cross-entropy of each window's tokens, in nats."""
        rows = (row.numpy().tobytes().hex() for ids in self._rows for row in ids.cpu())
        return Outcomes(metric, self._shares().cpu().numpy().astype(np.float64), None, samples_digest(rows))

    def _gathered(self) -> tuple[Tensor, Tensor]:
        sums, tokens = (torch.cat(parts) for parts in zip(*self._seen, strict=True))
        return sums, tokens

    def _shares(self) -> Tensor:
        """What each window adds to the mean over all tokens, float64 [windows]: a window of few tokens adds less."""
        sums, tokens = self._gathered()
        return sums * len(tokens) / tokens.sum()
