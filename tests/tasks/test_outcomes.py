"""What each sample adds to a metric gives the metric back, over all samples and over some."""

import numpy as np
import pytest
import torch

from sparsefront.tasks.label_evaluator import LabelEvaluator
from sparsefront.tasks.outcomes import load_outcomes, samples_digest, save_outcomes

pytestmark = pytest.mark.filterwarnings("ignore:Metric `SpearmanCorrcoef` will save")
METRICS = {"accuracy": 3, "f1": 2, "matthews_correlation": 3, "pearson": 1, "spearman": 1}


def evaluated(metric: str, classes: int, rows: slice = slice(None)) -> LabelEvaluator:
    generator = torch.Generator().manual_seed(5)
    logits = torch.randn(60, classes, generator=generator)
    labels = torch.randint(classes, (60,), generator=generator) if classes > 1 else torch.randn(60, generator=generator)
    if classes == 1:
        labels = labels + logits[:, 0]
    evaluator = LabelEvaluator((metric,), classes, logits_of=lambda output: output)
    evaluator.update(logits[rows], {"labels": labels[rows]})
    return evaluator


@pytest.mark.parametrize(("metric", "classes"), METRICS.items())
def test_the_metric_over_some_samples_is_the_evaluator_s_of_these_alone(metric, classes):
    outcomes = evaluated(metric, classes).outcomes(metric)
    for rows in (slice(None), slice(10, 50)):
        chosen = np.arange(60)[rows]
        expected = evaluated(metric, classes, rows).compute()[metric]
        assert outcomes.metric_over(chosen) == pytest.approx(expected, abs=1e-6)


@pytest.mark.filterwarnings("error:The variance of predictions")
@pytest.mark.parametrize(("metric", "classes"), METRICS.items())
@pytest.mark.parametrize("label", [0, 1])
@pytest.mark.parametrize("samples", [8, 1])
def test_labels_that_are_all_the_same_have_a_metric(metric, classes, label, samples):
    """As of few samples that were held out; no correlation with them is defined, which counts as 0."""
    evaluator = LabelEvaluator((metric,), classes, logits_of=lambda output: output)
    logits = torch.randn(samples, classes, generator=torch.Generator().manual_seed(0))
    labels = torch.full((samples,), label)
    evaluator.update(logits, {"labels": labels if classes > 1 else labels.float()})
    found = evaluator.compute()[metric]
    assert evaluator.outcomes(metric).metric_over(np.arange(samples)) == pytest.approx(found)
    assert found == 0 or metric in ("accuracy", "f1")
    assert evaluator.standard_errors()[metric] >= 0


@pytest.mark.parametrize(("metric", "classes"), METRICS.items())
def test_a_file_gives_back_what_went_in(tmp_path, metric, classes):
    outcomes = evaluated(metric, classes).outcomes(metric)
    save_outcomes(tmp_path / "outcomes.npz", {"dense": outcomes, "sparse": outcomes})
    found = load_outcomes(tmp_path / "outcomes.npz")
    assert list(found) == ["dense", "sparse"] and found["sparse"].samples == outcomes.samples
    assert found["dense"].metric_over(np.arange(60)) == outcomes.metric_over(np.arange(60))
    assert found["dense"].values.tolist() == outcomes.values.tolist()


def test_other_samples_have_another_digest():
    assert samples_digest([1, 2, 3]) == samples_digest([1, 2, 3]) != samples_digest([1, 3, 2])
    assert samples_digest(["12", "3"]) != samples_digest(["1", "23"])
