"""Metrics against figures worked out by hand."""

import math

import pytest
import torch

from sparsefront.errors import InvalidSetting
from sparsefront.tasks.classification import METRICS, LabelEvaluator

pytestmark = pytest.mark.filterwarnings("ignore:Metric `SpearmanCorrcoef` will save")

# Predicted 1 1 1 0 0 0 1 0 for labels 1 1 0 0 0 1 1 0: 3 true positives, 3 true negatives, 1 false of each kind.
LOGITS = torch.tensor([[0.0, 1.0]] * 3 + [[2.0, 1.0]] * 3 + [[-3.0, -1.0], [0.5, 0.1]])
LABELS = torch.tensor([1, 1, 0, 0, 0, 1, 1, 0])


def computed(metrics: tuple[str, ...], logits: torch.Tensor, labels: torch.Tensor, *, classes: int) -> dict[str, float]:
    """Taken in as two batches of unequal size."""
    evaluator = LabelEvaluator(metrics, classes, logits_of=lambda output: output)
    for part in (slice(0, 3), slice(3, None)):
        evaluator.update(logits[part], {"labels": labels[part]})
    return evaluator.compute()


def test_three_classes_count_each_input_once() -> None:
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
def test_outputs_that_are_no_numbers_predict_nothing(classes) -> None:
    logits = LOGITS[:, :classes].clone()
    logits[2, -1] = logits[5, 0] = math.nan
    metric = "pearson" if classes == 1 else "accuracy"
    with pytest.raises(InvalidSetting, match="outputs=NaN for 2 of 8 inputs: must be numbers"):
        computed((metric,), logits, LABELS.float() if classes == 1 else LABELS, classes=classes)
    masked = LOGITS.masked_fill(LOGITS < 0, -math.inf)
    assert computed(("accuracy",), masked, LABELS, classes=2)["accuracy"] < 1, "a class may be ruled out"


@pytest.mark.filterwarnings("ignore:The variance of predictions")
def test_a_constant_output_has_no_correlation() -> None:
    constant = torch.ones(8, 1)
    found = computed(("pearson", "spearman"), constant, torch.arange(8.0), classes=1)
    assert found["pearson"] == 0.0


def test_every_metric_of_glue_exists() -> None:
    from sparsefront.data.glue import GLUE_TASKS

    assert {name for task in GLUE_TASKS.values() for name in task.metrics} <= METRICS.keys()
