"""How sure a metric is, against figures worked out by hand and against test sets that are drawn again."""

from types import SimpleNamespace

import pytest
import torch

from sparsefront.data.squad import Answer, Question
from sparsefront.tasks.classification import LabelEvaluator
from sparsefront.tasks.extractive_qa import AnswerEvaluator


def evaluated(metrics: tuple[str, ...], logits: torch.Tensor, labels: torch.Tensor, *, classes: int) -> LabelEvaluator:
    """Taken in as two batches of unequal size."""
    evaluator = LabelEvaluator(metrics, classes, logits_of=lambda output: output)
    for part in (slice(0, 3), slice(3, None)):
        evaluator.update(logits[part], {"labels": labels[part]})
    return evaluator


def noisy(n: int, *, right: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits of two classes whose argmax is the label with this probability."""
    labels = torch.randint(2, (n,))
    predicted = torch.where(torch.rand(n) < right, labels, 1 - labels)
    return torch.nn.functional.one_hot(predicted, 2).float(), labels


def test_accuracy_in_closed_form():
    labels = torch.tensor([0] * 100)
    logits = torch.nn.functional.one_hot(torch.tensor([0] * 80 + [1] * 20), 2).float()
    evaluator = evaluated(("accuracy",), logits, labels, classes=2)
    assert evaluator.samples == 100
    assert evaluator.standard_errors() == {"accuracy": pytest.approx(0.04)}  # √(0.8 · 0.2 / 100)


@pytest.mark.parametrize(("metric", "classes"), [("f1", 2), ("matthews_correlation", 2), ("pearson", 1)])
def test_the_bootstrap_agrees_with_test_sets_drawn_anew(metric: str, classes: int):
    torch.manual_seed(7)  # of spreads that are estimated from samples

    def test_set() -> tuple[torch.Tensor, torch.Tensor]:
        if classes == 2:
            return noisy(200, right=0.8)
        scores = torch.randn(200, 1)
        return scores, (scores + torch.randn(200, 1)).squeeze(1)

    again = [evaluated((metric,), *test_set(), classes=classes).compute()[metric] for _ in range(60)]
    spread = float(torch.tensor(again).std())
    evaluator = evaluated((metric,), *test_set(), classes=classes)
    assert evaluator.standard_errors()[metric] == pytest.approx(spread, rel=0.35)
    assert evaluator.standard_errors() == evaluator.standard_errors(), "the same samples give the same error"


def test_answers_by_question(monkeypatch):
    """Four questions with F1 1, 0.5, 0.5, 0: the spread between them over √4."""
    questions = [Question(str(n), "?", "", (Answer("red hill", 0),)) for n in range(4)]
    data = SimpleNamespace(
        part=lambda split: SimpleNamespace(text=None), source=SimpleNamespace(questions=lambda split: questions)
    )
    evaluator = AnswerEvaluator(data, "test")
    texts = ["red hill", "red mill", "old hill", "river"]
    evaluator._found = {number: [] for number in range(4)}
    monkeypatch.setattr(evaluator, "n_best_answers", lambda number: [(texts[number], 1.0)])
    assert evaluator.samples == 4
    expected = {"f1": torch.tensor([1.0, 0.5, 0.5, 0.0]), "exact_match": torch.tensor([1.0, 0.0, 0.0, 0.0])}
    assert evaluator.standard_errors() == pytest.approx(
        {name: float(values.std()) / 2 for name, values in expected.items()}
    )
    assert evaluator.compute() == pytest.approx({name: float(values.mean()) for name, values in expected.items()})
