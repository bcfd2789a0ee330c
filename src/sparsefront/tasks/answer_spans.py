"""From start and end logits to stretches of text."""

import unicodedata
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Spans:
    """The best spans of each window, best first.

    Attributes:
        scores: float32 [B, candidates]; -inf where a window has no further span.
        first, last: int64 [B, candidates], tokens of the window; `last` is part of the span.
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
        max_answer_length: tokens of a span at most.
    Source: the evaluation of BERT on SQuAD v1.1 (Devlin et al., 2019, public code): the score of a span is the sum of
    its two logits; spans that end before they begin, or are too long, do not count.
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
    """Characters [begin, end) of a context, with the accents that belong to the last one.

    A tokenizer that strips accents gives the offsets of what is left; where an accent is a character of its own, the
    last one of a word would be lost.
    """
    while end < len(context) and unicodedata.combining(context[end]):
        end += 1
    return context[begin:end]
