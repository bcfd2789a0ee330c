"""The coefficient against figures worked out by hand and against its definition for two classes."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sparsefront.tasks.classification import LabelEvaluator


def correlation(predicted: list[int], labels: list[int], classes: int = 2) -> float:
    """Taken in as two batches of unequal size."""
    evaluator = LabelEvaluator(("matthews_correlation",), classes, logits_of=lambda output: output)
    logits = torch.nn.functional.one_hot(torch.tensor(predicted), classes).float()
    for part in (slice(0, 1), slice(1, None)):
        evaluator.update(logits[part], {"labels": torch.tensor(labels)[part]})
    return evaluator.compute()["matthews_correlation"]


COLA = [1] * 721 + [0] * 322  # labels of its dev set


@pytest.mark.parametrize("always", [0, 1])
def test_a_network_that_always_answers_the_same_has_no_correlation(always: int):
    assert correlation([always] * len(COLA), COLA) == 0


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
