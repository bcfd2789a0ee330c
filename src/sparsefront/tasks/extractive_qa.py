"""Extractive question answering: find the span of a paragraph that answers a question."""

import unicodedata
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from pytorch_lightning import LightningDataModule
from torch import Tensor, nn

from sparsefront.tasks.base import Batch, Optimizes, text_inputs
from sparsefront.tasks.lightning_modules import LightningTask
from sparsefront.tasks.outcomes import Outcomes, error_of_mean, samples_digest


@dataclass(frozen=True)
class Spans:
    """The best spans of each window, best first.

    Attributes:
        scores: float32 [B, candidates]; -inf if a window has no further span.
        first, last: int64 [B, candidates], token positions in the window; `last` is included.
    """

    scores: Tensor
    first: Tensor
    last: Tensor


def best_spans(
    start_logits: Tensor, end_logits: Tensor, context: Tensor, *, n_best: int, max_answer_length: int
) -> Spans:
    """Pair the `n_best` starts of each window with its `n_best` ends and keep the `n_best` pairs.

    Args:
        start_logits, end_logits: [B, tokens], any float dtype.
        context: bool [B, tokens], True where an answer may be.
        max_answer_length: maximum number of tokens of a span.
    Source: the evaluation of BERT on SQuAD v1.1 (Devlin et al., 2019, public code): the score of a span is the sum of
        its two logits; spans that end before they begin or are too long are discarded.
    """
    candidates = min(n_best, start_logits.shape[1])
    start = start_logits.float().masked_fill(~context, -torch.inf).topk(candidates, dim=1)
    end = end_logits.float().masked_fill(~context, -torch.inf).topk(candidates, dim=1)

    scores = start.values[:, :, None] + end.values[:, None, :]  # [B, starts, ends]
    length = end.indices[:, None, :] - start.indices[:, :, None] + 1
    possible = (length >= 1) & (length <= max_answer_length) & scores.isfinite()
    best = scores.masked_fill(~possible, -torch.inf).flatten(1).topk(min(n_best, candidates**2), dim=1)
    return Spans(
        scores=best.values,
        first=start.indices.gather(1, best.indices // candidates),
        last=end.indices.gather(1, best.indices % candidates),
    )


def text_between(context: str, begin: int, end: int) -> str:
    """Characters [begin, end) of a context, extended by combining accents of the last one.

    A tokenizer that strips accents returns offsets without them; an accent that is a separate character would be cut off the
    end of a word.
    """
    while end < len(context) and unicodedata.combining(context[end]):
        end += 1
    return context[begin:end]


N_BEST = 20
MAX_ANSWER_LENGTH = 30  # tokens; like `n_best`, the value of published SQuAD results


class ExtractiveQA(LightningTask):
    """Cross-entropy of the answer's first and last token; F1 and exact match.

    The net is called with Hugging Face's argument names and returns an output with `start_logits` and `end_logits`, [B, tokens].
    """

    kind: ClassVar[str] = "extractive_qa"
    metric_name = "f1"

    @classmethod
    def for_dataset(cls, net: nn.Module, dataset: Any, optimization: Optimizes | None = None) -> "ExtractiveQA":
        return cls(net, optimization)

    def net_inputs(self, batch: Batch) -> Batch:
        return text_inputs(batch, self.net)

    def loss(self, output: Any, batch: Batch) -> Tensor:
        start = F.cross_entropy(output.start_logits, batch["start_positions"])
        end = F.cross_entropy(output.end_logits, batch["end_positions"])
        return (start + end) / 2

    def logits(self, output: Any) -> tuple[Tensor, ...]:
        return (output.start_logits, output.end_logits)

    def evaluator(self, data: LightningDataModule, split: str) -> "AnswerEvaluator":
        return AnswerEvaluator(data, split)


class AnswerEvaluator:
    """Finds the best answer to each question over all of its windows and compares it with the annotators'.

    Questions without a seen window do not count, so a pass over the first batches can be evaluated. If several processes
    share a split, each evaluates a question by the windows it has seen.

    Args:
        data: source of the windows (`part(split).text`) and the questions (`source.questions(split)`).
        split: `val` or `test`; the windows of train have no offsets.
        n_best: number of starts and ends per window that are paired, and of answers kept per question.
        max_answer_length: in tokens.
    """

    def __init__(
        self, data: Any, split: str, *, n_best: int = N_BEST, max_answer_length: int = MAX_ANSWER_LENGTH
    ) -> None:
        self._windows = data.part(split).text
        self._questions = data.source.questions(split)
        self._n_best = n_best
        self._max_answer_length = max_answer_length
        self._device = torch.device("cpu")  # becomes the outputs' device, where several processes can sum their counts
        self._found: dict[int, list[tuple[float, int, int]]] = {}  # question -> (score, begin, end), best first
        self._values: dict[str, list[float]] = {}  # metric -> of each question seen; empty until it is computed

    @torch.no_grad()
    def update(self, output: Any, batch: Batch) -> None:
        self._device, self._values = output.start_logits.device, {}
        start, end = output.start_logits.cpu(), output.end_logits.cpu()
        offsets = self._windows.pad("offsets", batch["window"].cpu(), width=start.shape[1], fill=-1)
        spans = best_spans(
            start, end, offsets[:, :, 0] >= 0, n_best=self._n_best, max_answer_length=self._max_answer_length
        )
        rows = torch.arange(len(start))[:, None]
        begins, ends = offsets[rows, spans.first, 0], offsets[rows, spans.last, 1]
        for row, question in enumerate(batch["question"].tolist()):
            answers = zip(spans.scores[row].tolist(), begins[row].tolist(), ends[row].tolist(), strict=True)
            candidates = self._found.get(question, []) + [answer for answer in answers if answer[0] > -torch.inf]
            self._found[question] = sorted(candidates, key=_best_then_first)[: self._n_best]

    def n_best_answers(self, question: int) -> list[tuple[str, float]]:
        """Text and score of the answers to a question, best first; empty if no window has one."""
        context = self._questions[question].context
        return [(text_between(context, begin, end), score) for score, begin, end in self._found.get(question, [])]

    def compute(self) -> dict[str, float]:
        """`f1` and `exact_match` over the questions seen, in [0, 1]: means of torchmetrics' value per question, because its own
        fp32 sum is off by 5e-6 after ten thousand questions.
        """
        from torchmetrics import MeanMetric

        metrics = {}
        for name, values in self._of_each_question().items():
            mean = MeanMetric().set_dtype(torch.float64).to(self._device)
            mean.update(torch.tensor(values, dtype=torch.float64, device=self._device))
            metrics[name] = float(mean.compute())
        return metrics

    @property
    def samples(self) -> int:
        return len(self._found)

    def standard_errors(self) -> dict[str, float]:
        """See `Evaluator.standard_errors`: both metrics are means over questions."""
        return {name: error_of_mean(torch.tensor(values)) for name, values in self._of_each_question().items()}

    def outcomes(self, metric: str) -> Outcomes:
        """See `Evaluator.outcomes`: the metric of each question."""
        names = [self._questions[number].id for number in sorted(self._found)]
        values = np.asarray(self._of_each_question()[metric], dtype=np.float32)
        return Outcomes(metric, values, None, samples_digest(names))

    def _of_each_question(self) -> dict[str, list[float]]:
        from torchmetrics.functional.text import squad

        if not self._values:
            metrics = [squad([answer], [truth]) for answer, truth in zip(*self._pair_answers(), strict=True)]
            names = ("f1", "exact_match")
            self._values = {name: [float(values[name]) / 100 for values in metrics] for name in names}
        return self._values

    def _pair_answers(self) -> tuple[list[dict], list[dict]]:
        """The answer and the annotators' answers to each question seen, as torchmetrics takes them."""
        predicted, references = [], []
        for number in sorted(self._found):
            question, answers = self._questions[number], self.n_best_answers(number)
            predicted.append({"id": question.id, "prediction_text": answers[0][0] if answers else ""})
            truth = {
                "text": [answer.text for answer in question.answers],
                "answer_start": [answer.start for answer in question.answers],
            }
            references.append({"id": question.id, "answers": truth})
        return predicted, references


def _best_then_first(answer: tuple[float, int, int]) -> tuple[float, int, int]:
    score, begin, end = answer
    return -score, begin, end
