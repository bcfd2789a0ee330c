"""Causal language modeling: next-token prediction."""

import math
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from pytorch_lightning import LightningDataModule
from torch import Tensor, nn

from sparsefront.errors import InvalidSetting
from sparsefront.tasks.base import MASK, Batch, Optimizes
from sparsefront.tasks.lightning_modules import LightningTask
from sparsefront.tasks.outcomes import Outcomes, error_of_mean, samples_digest

IGNORED = -100
"""Target of tokens without a prediction."""
SCORED = "scored"


def next_tokens(batch: Batch) -> Tensor:
    """The token that follows each token but the last, int64 [B, T - 1]; `IGNORED` for padding and for all but the last `scored`
    tokens of a row.

    Args:
        batch: `input_ids` int64 [B, T], T at least 2; `attention_mask` [B, T] if rows are padded; `scored` int64 [B] if rows
            repeat tokens that an earlier row has predicted.
    """
    targets = batch["input_ids"][:, 1:]
    if MASK in batch:
        targets = targets.masked_fill(batch[MASK][:, 1:] == 0, IGNORED)
    if SCORED in batch:
        first = targets.shape[1] - batch[SCORED]
        targets = targets.masked_fill(torch.arange(targets.shape[1], device=targets.device) < first[:, None], IGNORED)
    return targets


class CausalLM(LightningTask):
    """Next-token cross-entropy, and perplexity: exp of its mean over all scored tokens.

    The net is called with Hugging Face's argument names and returns an output with `logits` [B, T, vocabulary].
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

    def counted(self, batch: Batch) -> Tensor:
        return F.pad(next_tokens(batch) != IGNORED, (0, 1)).flatten()  # nothing follows the last token

    def evaluator(self, data: LightningDataModule | None, split: str) -> "NextTokenEvaluator":
        return NextTokenEvaluator()


class NextTokenEvaluator:
    """Perplexity over rows of text.

    Logits are reduced on their device, in fp32, one row at a time: those of a row of 1,024 tokens take 200 MB.
    """

    reduces_outputs = True

    def __init__(self) -> None:
        self._seen: list[
            tuple[Tensor, Tensor]
        ] = []  # per batch: sums of cross-entropies, float64 [B], and numbers of tokens [B]
        self._rows: list[Tensor] = []

    @torch.no_grad()
    def update(self, output: Any, batch: Batch) -> None:
        logits = output.logits
        targets = next_tokens(batch).to(logits.device)
        sums = [
            F.cross_entropy(row[:-1].float(), expected, ignore_index=IGNORED, reduction="sum").double()
            for row, expected in zip(logits, targets, strict=True)
        ]
        self._rows.append(batch["input_ids"])
        self._seen.append((torch.stack(sums), (targets != IGNORED).sum(1)))

    def compute(self) -> dict[str, float]:
        """See `Evaluator.compute`.

        Raises:
            InvalidSetting: outputs are not finite.
        """
        from torchmetrics import MeanMetric

        sums, tokens = self._gather()
        undefined = int((~sums.isfinite()).sum())
        if undefined:
            allowed = "must be finite: look for NaN in the weights, or values too large for the dtype (measure.dtype)"
            raise InvalidSetting("outputs", f"not finite in {undefined} of {self.samples} windows", allowed)
        mean = MeanMetric().to(sums.device).set_dtype(torch.float64)  # in this order: `to` resets the dtype to fp32
        mean.update(sums / tokens, tokens)
        return {CausalLM.metric_name: math.exp(float(mean.compute()))}

    @property
    def samples(self) -> int:
        return sum(len(tokens) for _, tokens in self._seen)

    def standard_errors(self) -> dict[str, float]:
        """See `Evaluator.standard_errors`: to first order, that of the mean cross-entropy times the perplexity."""
        return {name: value * error_of_mean(self._shares()) for name, value in self.compute().items()}

    def outcomes(self, metric: str) -> Outcomes:
        """See `Evaluator.outcomes`: the mean cross-entropy of each window's tokens, in nats."""
        rows = (row.numpy().tobytes().hex() for ids in self._rows for row in ids.cpu())
        return Outcomes(metric, self._shares().cpu().numpy().astype(np.float64), None, samples_digest(rows))

    def _gather(self) -> tuple[Tensor, Tensor]:
        sums, tokens = (torch.cat(parts) for parts in zip(*self._seen, strict=True))
        return sums, tokens

    def _shares(self) -> Tensor:
        """Weight of each window in the mean over all tokens, float64 [windows]: proportional to its tokens."""
        sums, tokens = self._gather()
        return sums * len(tokens) / tokens.sum()
