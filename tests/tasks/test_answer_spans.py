"""The best spans against trying all pairs."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from sparsefront.tasks.extractive_qa import best_spans, text_between


@given(st.integers(0, 10_000), st.integers(1, 12), st.integers(1, 6))
def test_with_all_tokens_as_candidates_it_is_the_search_over_all_pairs(seed: int, tokens: int, longest: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    start, end = torch.randn(2, 1, tokens, generator=generator)
    context = torch.rand(1, tokens, generator=generator) < 0.7
    found = best_spans(start, end, context, n_best=tokens, max_answer_length=longest)
    pairs = sorted(
        (
            (float(start[0, i] + end[0, j]), i, j)
            for i in range(tokens)
            for j in range(i, min(tokens, i + longest))
            if context[0, i] and context[0, j]
        ),
        reverse=True,
    )[:tokens]
    kept = found.scores[0] > -torch.inf
    assert list(zip(found.first[0, kept].tolist(), found.last[0, kept].tolist(), strict=True)) == [
        (i, j) for _, i, j in pairs
    ]
    assert torch.allclose(found.scores[0, kept], torch.tensor([score for score, _, _ in pairs]))


def test_logits_that_are_no_numbers_give_no_span() -> None:
    broken = torch.full((1, 5), torch.nan)
    found = best_spans(broken, broken, torch.ones(1, 5, dtype=torch.bool), n_best=3, max_answer_length=5)
    assert (found.scores == -torch.inf).all()


def test_accents_of_their_own_belong_to_the_letter_before() -> None:
    assert text_between("un cafe\u0301\u0323 noir", 3, 7) == "cafe\u0301\u0323"
    assert text_between("cafe", 0, 4) == "cafe"
