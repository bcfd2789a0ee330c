"""Beam search beside every translation there is, on a vocabulary of a few tokens."""

import itertools
import math

import pytest
import torch
from torch import Tensor

from sparsefront.errors import InvalidSetting
from sparsefront.tasks.decoding import BOS, EOS, PAD, Decoding, TranslationNetwork, WholeTranslation, translate

VOCABULARY = 7
WORDS = range(3, VOCABULARY)


class Trigrams(TranslationNetwork):
    """What follows depends on the two tokens before, and on the first of the source."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        shape = (VOCABULARY,) * 4
        self.table = torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * 2

    def forward(self, source: Tensor, source_mask: Tensor, target: Tensor) -> Tensor:
        before = torch.cat([torch.full_like(target[:, :1], PAD), target[:, :-1]], 1)
        return self.table[source[:, :1].expand_as(target), before, target]

    def encode(self, source: Tensor, source_mask: Tensor) -> tuple[Tensor, Tensor]:
        return source[:, 0], torch.full_like(source[:, 0], PAD)

    def step(self, tokens: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        first, before = state
        return self.table[first, before, tokens], (first, tokens)

    def reorder(self, state: tuple[Tensor, Tensor], indices: Tensor) -> tuple[Tensor, Tensor]:
        first, before = state
        return first[indices], before[indices]


def following(net: Trigrams, first: int, tokens: list[int]) -> list[float]:
    """Log-probabilities of what may follow the tokens, `BOS` before them."""
    logits = net.table[first, ([PAD, BOS] + tokens)[-2], ([BOS] + tokens)[-1]]
    found = logits.log_softmax(-1).tolist()
    return [-math.inf if token in (PAD, BOS) else value for token, value in enumerate(found)]


def score_of(net: Trigrams, first: int, tokens: list[int], penalty: float) -> float:
    total = sum(following(net, first, tokens[:place])[token] for place, token in enumerate(tokens))
    return total / len(tokens) ** penalty


def plain_beam_search(net: Trigrams, first: int, how: Decoding) -> list[int]:
    """As the docstring of `translate` says, one hypothesis after the other."""
    live: list[tuple[float, list[int]]] = [(0.0, [])]
    finished: list[tuple[float, list[int]]] = []
    for length in range(1, how.max_length + 1):
        every = [
            (total + value, [*tokens, token])
            for total, tokens in live
            for token, value in enumerate(following(net, first, tokens))
            if value > -math.inf and (length < how.max_length or token == EOS)
        ]
        every = sorted(every, key=lambda entry: -entry[0])[: 2 * how.beam]
        ended = [entry for entry in every[: how.beam] if entry[1][-1] == EOS]
        finished += [(total / length**how.length_penalty, tokens) for total, tokens in ended]
        finished = sorted(finished, key=lambda entry: -entry[0])[: how.beam]
        live = [entry for entry in every if entry[1][-1] != EOS][: how.beam]
        if len(finished) == how.beam:
            break
    return finished[0][1]


def found(net: Trigrams, firsts: list[int], how: Decoding) -> list[list[int]]:
    source = torch.tensor([[first, EOS] for first in firsts])
    tokens = translate(net, source, torch.ones_like(source, dtype=torch.bool), how)
    assert tokens.shape[1] <= how.max_length
    rows = [row[: row.index(EOS) + 1] for row in tokens.tolist()]
    assert all(set(row[len(kept) :]) <= {PAD} for row, kept in zip(tokens.tolist(), rows, strict=True))
    return rows


@pytest.mark.parametrize("penalty", [0.0, 1.0, 2.0])
def test_whole_beam_finds_the_best(penalty: float) -> None:
    net, longest = Trigrams(), 3
    every = [[*words, EOS] for length in range(longest) for words in itertools.product(WORDS, repeat=length)]
    got = found(net, [*WORDS], Decoding(beam=4**longest, length_penalty=penalty, max_length=longest))
    for first, tokens in zip(WORDS, got, strict=True):
        best = max(every, key=lambda tokens: score_of(net, first, tokens, penalty))
        assert tokens == best


@pytest.mark.parametrize("beam", [1, 2, 3, 5])
def test_beam_search_of_any_batch(beam: int) -> None:
    for seed in range(4):
        net, how = Trigrams(seed), Decoding(beam, 1.0, 9)
        together = found(net, [*WORDS], how)
        for first, tokens in zip(WORDS, together, strict=True):
            assert tokens == plain_beam_search(net, first, how) == found(net, [first], how)[0]


def test_whole_translation_takes_all_steps() -> None:
    net, how = Trigrams(), Decoding(3, 1.0, 9)
    steps: list[Tensor] = []
    net.step, step = lambda tokens, state: steps.append(tokens) or step(tokens, state), net.step
    source = torch.tensor([[first, EOS] for first in WORDS])
    tokens, scores = WholeTranslation(net, how)(source, torch.ones_like(source, dtype=torch.bool))
    assert len(steps) == 9 and tokens.shape == (len(WORDS), 9)
    for first, row, score in zip(WORDS, tokens.tolist(), scores.tolist(), strict=True):
        (kept,) = found(net, [first], how)
        assert row == kept + [PAD] * (9 - len(kept))
        assert score == pytest.approx(score_of(net, first, kept, 1.0), abs=1e-5)


def test_logits_that_are_not_finite() -> None:
    net = Trigrams()
    net.table[4] = math.nan
    with pytest.raises(InvalidSetting, match="not finite for 1 of 2 sentences"):
        found(net, [3, 4], Decoding(2, 1.0, 5))
