"""From logits to spans, and to F1 and exact match."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sparsefront.data.squad import Answer, Question, question_windows
from sparsefront.data.text import EncodedText
from sparsefront.tasks.extractive_qa import AnswerEvaluator, ExtractiveQA, best_spans


def pointing(first: int, last: int, width: int, *, score: float = 5.0) -> tuple[torch.Tensor, torch.Tensor]:
    """Start and end logits that prefer one span; 0 everywhere else."""
    start, end = torch.zeros(width), torch.zeros(width)
    start[first], end[last] = score, score
    return start, end


def output_of(spans: list[tuple[torch.Tensor, torch.Tensor]]) -> SimpleNamespace:
    start, end = (torch.stack(logits) for logits in zip(*spans, strict=True))
    return SimpleNamespace(start_logits=start, end_logits=end)


def one_question(tokenizer: Any, context: str, *answers: str, max_length: int = 16, stride: int = 2) -> Any:
    """Data of a single question."""
    asked = Question("q", "is it ?", context, tuple(Answer(text, context.index(text)) for text in answers))
    text = question_windows(
        [asked], tokenizer=tokenizer, max_length=max_length, stride=stride, training=False, description="windows"
    )
    return SimpleNamespace(
        part=lambda split: SimpleNamespace(text=text), source=SimpleNamespace(questions=lambda split: [asked])
    )


def windows(data: Any) -> tuple[EncodedText, dict[str, torch.Tensor]]:
    text = data.part("test").text
    return text, {"window": text.columns["window"], "question": text.columns["question"]}


def test_partial_answers_by_hand(tokenizer: Any) -> None:
    """Found `a hill near`, wanted `a hill`: articles do not count, so 1 of 2 words is right and 1 of 1 is found."""
    data = one_question(tokenizer, "a hill near the old mill", "a hill", "the old mill", max_length=64)
    text, batch = windows(data)
    words = text.tokens["offsets"].tolist()
    first, last = words.index([0, 1]), next(i for i, span in enumerate(words) if span[1] == len("a hill near"))
    evaluator = AnswerEvaluator(data, "test")
    evaluator.update(output_of([pointing(first, last, len(words))]), batch)
    assert evaluator.n_best_answers(0)[0] == ("a hill near", 10.0)
    assert evaluator.compute() == pytest.approx({"f1": 2 * 1 * 0.5 / 1.5, "exact_match": 0.0})


def test_best_of_several_windows(tokenizer: Any) -> None:
    context = " ".join("abcdefghijklmnopqrstuvwxyz")
    data = one_question(tokenizer, context, "s")
    text, batch = windows(data)
    assert len(text) > 3
    evaluator = AnswerEvaluator(data, "test", n_best=4)
    width = int(text.lengths(batch["window"]).max())
    holding = [
        row
        for row in range(len(text))
        if [36, 37] in text.tokens["offsets"][text.starts[row] : text.starts[row + 1]].tolist()
    ]
    for row in range(len(text)):
        offsets = text.tokens["offsets"][text.starts[row] : text.starts[row + 1]].tolist()
        place = offsets.index([36, 37]) if row in holding else 6
        one = {name: values[row : row + 1] for name, values in batch.items()}
        evaluator.update(output_of([pointing(place, place, width, score=9.0 if row in holding else 2.0)]), one)
    answers = evaluator.n_best_answers(0)
    assert answers[0] == ("s", 18.0)
    assert len(answers) == 4 and [score for _, score in answers] == sorted(
        (score for _, score in answers), reverse=True
    )
    assert evaluator.compute() == {"f1": 1.0, "exact_match": 1.0}


def test_answers_of_the_context_alone(tokenizer: Any) -> None:
    data = one_question(tokenizer, "a b c d e f g h", "c", max_length=64)
    text, batch = windows(data)
    width = len(text.tokens["input_ids"])
    evaluator = AnswerEvaluator(data, "test", max_answer_length=2)
    evaluator.update(output_of([pointing(1, width - 2, width, score=50.0)]), batch)
    texts = [answer for answer, _ in evaluator.n_best_answers(0)]
    assert texts and all(len(answer.split()) <= 2 for answer in texts)
    assert not any("it" in answer for answer in texts)


def test_loss_of_both_ends() -> None:
    start, end = pointing(1, 2, 4)
    batch = {"start_positions": torch.tensor([1]), "end_positions": torch.tensor([0])}
    loss = ExtractiveQA(torch.nn.Identity()).loss(output_of([(start, end)]), batch)
    assert loss.item() == pytest.approx((-start.log_softmax(0)[1] - end.log_softmax(0)[0]).item() / 2)


@given(st.integers(0, 10_000), st.integers(1, 12), st.integers(1, 6))
def test_best_spans_against_all_pairs(seed: int, tokens: int, longest: int) -> None:
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


def test_no_span_without_numbers() -> None:
    broken = torch.full((1, 5), torch.nan)
    found = best_spans(broken, broken, torch.ones(1, 5, dtype=torch.bool), n_best=3, max_answer_length=5)
    assert (found.scores == -torch.inf).all()
