"""Machine translation."""

from collections.abc import Sequence
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from pytorch_lightning import LightningDataModule
from torch import Tensor, nn

from sparsefront.errors import InvalidSetting
from sparsefront.tasks.base import Batch, Optimizes
from sparsefront.tasks.causal_lm import IGNORED
from sparsefront.tasks.decoding import Decoding, TranslationNetwork, translate
from sparsefront.tasks.lightning_modules import LightningTask
from sparsefront.tasks.outcomes import (
    BLEU,
    MOST_WORDS,
    Outcomes,
    corpus_bleu,
    error_by_bootstrap,
    pack_counts,
    samples_digest,
)

INPUTS = ("source", "source_mask", "target")
LABELS = "labels"
"""int64 [B, T]: the token that follows each target token, `IGNORED` for padding."""


class Translates(Protocol):
    """What translation data modules provide besides batches."""

    def references(self, split: str) -> Sequence[str]:
        """The reference translations of a split, in order."""

    def text(self, tokens: Tensor) -> list[str]:
        """Decode token ids, int64 [B, T], into sentences."""


class Translation(LightningTask):
    """Next-token cross-entropy of the target, given the source; BLEU and chrF of beam search.

    Both are computed by sacreBLEU on plain text, whose signature is part of the results. During training, only the loss on the
    held-out part is logged.

    Args:
        decoding: settings of the beam search.
    """

    kind: ClassVar[str] = "translation"
    metric_name = BLEU

    def __init__(self, net: nn.Module, optimization: Optimizes | None = None, *, decoding: Decoding) -> None:
        super().__init__(net, optimization)
        self.decoding = decoding
        self._losses: list[tuple[Tensor, Tensor]] = []

    @classmethod
    def for_dataset(cls, net: nn.Module, dataset: Any, optimization: Optimizes | None = None) -> "Translation":
        longest = dataset.info.sequence_length
        return cls(net, optimization, decoding=Decoding(dataset.beam, dataset.length_penalty, longest))

    def net_inputs(self, batch: Batch) -> Batch:
        return {name: batch[name] for name in INPUTS}

    def loss(self, output: Any, batch: Batch) -> Tensor:
        return F.cross_entropy(output.flatten(0, 1).float(), batch[LABELS].flatten(), ignore_index=IGNORED)

    def logits(self, output: Any) -> tuple[Tensor, ...]:
        return (output.flatten(0, 1),)

    def counted(self, batch: Batch) -> Tensor:
        return (batch[LABELS] != IGNORED).flatten()

    def predict(self, net: nn.Module, inputs: Batch) -> Tensor:
        """Translate, int64 [B, T], as in `translate`; the target in the inputs is not used."""
        if not isinstance(net, TranslationNetwork):
            allowed = (
                "cannot translate: it has no encode, step and reorder of sparsefront.tasks.decoding.TranslationNetwork"
            )
            raise InvalidSetting("net", type(net).__name__, allowed)
        return translate(net, inputs["source"], inputs["source_mask"], self.decoding)

    def evaluator(self, data: LightningDataModule, split: str) -> "BleuEvaluator":
        return BleuEvaluator(data, split)

    def on_validation_epoch_start(self) -> None:
        self._losses = []

    def validation_step(self, batch: Batch, batch_index: int) -> None:
        tokens = (batch[LABELS] != IGNORED).sum()
        self._losses.append((self.loss(self(batch), batch) * tokens, tokens))

    def on_validation_epoch_end(self) -> None:
        if self._losses:
            sums, tokens = (torch.stack(parts).sum() for parts in zip(*self._losses, strict=True))
            self.log("val/loss", sums / tokens, prog_bar=True)
        self._losses = []


class BleuEvaluator:
    """BLEU and chrF of translations against one reference each, as fractions.

    Args:
        data: `Translates`.
    Attributes:
        signature: sacreBLEU's, with which its numbers can be compared.
        texts: the translations so far.
    """

    reduces_outputs = True

    def __init__(self, data: Any, split: str) -> None:
        from sacrebleu.metrics import BLEU as SacreBleu

        self._data, self._references = data, data.references(split)
        self._scorer = SacreBleu(effective_order=True)  # only affects scores of single sentences
        self.texts: list[str] = []
        self._counts: list[tuple[int, int]] = []  # per sentence: packed counts, words of the reference
        whole = SacreBleu()
        whole.corpus_score(["a"], [["a"]])  # otherwise the signature lacks the number of references
        self.signature = str(whole.get_signature())

    def update(self, output: Tensor, batch: Batch) -> None:
        for text in self._data.text(output.cpu()):
            scored = self._scorer.sentence_score(text, [self._references[len(self.texts)]])
            if max(scored.sys_len, scored.ref_len) > MOST_WORDS:
                longest = max(scored.sys_len, scored.ref_len)
                raise InvalidSetting(
                    "dataset.max_length", longest, f"words in a sentence, at most {MOST_WORDS} are scored"
                )
            self._counts.append((pack_counts(scored.sys_len, scored.counts), scored.ref_len))
            self.texts.append(text)

    def compute(self) -> dict[str, float]:
        from sacrebleu.metrics import CHRF

        chrf = CHRF().corpus_score(self.texts, [self._references[: self.samples]])
        return {BLEU: corpus_bleu(*self._columns()), "chrf": chrf.score / 100}

    def standard_errors(self) -> dict[str, float]:
        """Of BLEU only, by bootstrap; 100 draws of chrF would take longer than translating."""
        packed, words = self._columns()
        return {BLEU: error_by_bootstrap(lambda drawn: corpus_bleu(packed[drawn], words[drawn]), self.samples)}

    def outcomes(self, metric: str) -> Outcomes:
        """See `Evaluator.outcomes`: the contribution of each sentence to the counts."""
        packed, words = self._columns()
        return Outcomes(metric, packed, words, samples_digest(self._references[: self.samples]))

    @property
    def samples(self) -> int:
        return len(self.texts)

    def _columns(self) -> tuple[np.ndarray, np.ndarray]:
        packed, words = np.array(self._counts, dtype=np.int64).reshape(-1, 2).T
        return packed, words
