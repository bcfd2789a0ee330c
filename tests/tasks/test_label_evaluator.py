"""Metrics and how sure they are, against figures worked out by hand and against test sets that are drawn again."""

import math
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sparsefront.data.squad import Answer, Question
from sparsefront.errors import InvalidSetting
from sparsefront.tasks.classification import LabelEvaluator
from sparsefront.tasks.extractive_qa import AnswerEvaluator

pytestmark = pytest.mark.filterwarnings("ignore:Metric `SpearmanCorrcoef` will save")

# Predicted 1 1 1 0 0 0 1 0 for labels 1 1 0 0 0 1 1 0: 3 true positives, 3 true negatives, 1 false of each kind.
LOGITS = torch.tensor([[0.0, 1.0]] * 3 + [[2.0, 1.0]] * 3 + [[-3.0, -1.0], [0.5, 0.1]])
LABELS = torch.tensor([1, 1, 0, 0, 0, 1, 1, 0])


def evaluated(metrics: tuple[str, ...], logits: torch.Tensor, labels: torch.Tensor, *, classes: int) -> LabelEvaluator:
    """Taken in as two batches of unequal size."""
    evaluator = LabelEvaluator(metrics, classes, logits_of=lambda output: output)
    for part in (slice(0, 1), slice(1, None)):
        evaluator.update(logits[part], {"labels": labels[part]})
    return evaluator


def computed(metrics: tuple[str, ...], logits: torch.Tensor, labels: torch.Tensor, *, classes: int) -> dict[str, float]:
    return evaluated(metrics, logits, labels, classes=classes).compute()


def correlation(predicted: list[int], labels: list[int], classes: int = 2) -> float:
    logits = torch.nn.functional.one_hot(torch.tensor(predicted), classes).float()
    metric = "matthews_correlation"
    return computed((metric,), logits, torch.tensor(labels), classes=classes)[metric]


def test_inputs_of_three_classes() -> None:
    """Classes of unequal size: micro-averaged, 4 of 5, where the mean over classes would be (1 + 0) / 2."""
    logits = torch.eye(3)[[0, 0, 0, 0, 0]]
    assert computed(("accuracy",), logits, torch.tensor([0, 0, 0, 0, 2]), classes=3) == {"accuracy": pytest.approx(0.8)}


def test_scores() -> None:
    predicted = torch.tensor([[1.0], [2.0], [3.0], [5.0]])
    labels = torch.tensor([1.0, 3.0, 2.0, 4.0])
    found = computed(("pearson", "spearman"), predicted, labels, classes=1)
    deviations = ([-1.75, -0.75, 0.25, 2.25], [-1.5, 0.5, -0.5, 1.5])
    product = sum(x * y for x, y in zip(*deviations, strict=True))
    norms = math.prod(math.sqrt(sum(x * x for x in values)) for values in deviations)
    assert found == pytest.approx({"pearson": product / norms, "spearman": 0.8})


@pytest.mark.filterwarnings("ignore:The variance")
@pytest.mark.parametrize("classes", [1, 2])
def test_outputs_that_are_no_numbers(classes) -> None:
    logits = LOGITS[:, :classes].clone()
    logits[2, -1] = logits[5, 0] = math.nan
    metric = "pearson" if classes == 1 else "accuracy"
    with pytest.raises(InvalidSetting, match="outputs=NaN for 2 of 8 inputs: must be numbers"):
        computed((metric,), logits, LABELS.float() if classes == 1 else LABELS, classes=classes)
    masked = LOGITS.masked_fill(LOGITS < 0, -math.inf)
    assert computed(("accuracy",), masked, LABELS, classes=2)["accuracy"] < 1, "a class may be ruled out"


@pytest.mark.filterwarnings("ignore:The variance of predictions")
def test_constant_output_has_no_correlation() -> None:
    constant = torch.ones(8, 1)
    found = computed(("pearson", "spearman"), constant, torch.arange(8.0), classes=1)
    assert found["pearson"] == 0.0


def test_three_classes_by_hand():
    """Right 5 of 6; labels 2, 2, 2 and predictions 3, 2, 1 of each class: (5 · 6 - 12) / √(36 - 12) √(36 - 14)."""
    found = correlation([0, 0, 1, 1, 2, 0], [0, 0, 1, 1, 2, 2], classes=3)
    assert found == pytest.approx((5 * 6 - 12) / math.sqrt((36 - 12) * (36 - 14)))
    assert correlation([2, 1, 0], [2, 1, 0], classes=3) == 1


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 1)), min_size=2, max_size=40))
def test_two_classes_by_their_four_counts(samples: list[tuple[int, int]]):
    """(TP · TN - FP · FN) / √((TP + FP) (TP + FN) (TN + FP) (TN + FN)), and 0 where a sum is 0."""
    tp, fp, fn, tn = (samples.count(kind) for kind in ((1, 1), (1, 0), (0, 1), (0, 0)))  # (predicted, label)
    spread = math.sqrt((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn))
    found = correlation(*map(list, zip(*samples, strict=True)))
    assert found == pytest.approx((tp * tn - fp * fn) / spread if spread else 0.0, abs=1e-12)


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
def test_bootstrap_against_new_test_sets(metric: str, classes: int):
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
