"""Distances between outputs: NaN, other shapes and other structures never count as agreement."""

import math

import pytest
import torch

from sparsefront.measure.agreement import output_error, relative_error


def test_the_error_is_relative_to_the_expected_norm():
    expected = torch.tensor([3.0, 4.0])
    assert relative_error(expected, expected) == 0.0
    assert relative_error(expected + torch.tensor([0.0, 0.5]), expected) == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("actual", "expected"),
    [
        (torch.tensor([math.nan, 1.0]), torch.ones(2)),
        (torch.tensor([math.inf, 1.0]), torch.ones(2)),
        (torch.ones(2), torch.tensor([math.inf, 1.0])),
        (torch.tensor([math.inf]), torch.tensor([math.inf])),
        (torch.ones(2, 1), torch.ones(2)),
        (torch.ones(2), torch.zeros(2)),
    ],
)
def test_what_cannot_be_compared_is_infinitely_far(actual, expected):
    assert relative_error(actual, expected) == math.inf


def test_zeros_agree_with_zeros():
    assert relative_error(torch.zeros(2), torch.zeros(2)) == 0.0


def test_the_worst_tensor_of_an_output_counts():
    expected = {"a": torch.ones(4), "b": (torch.ones(4), torch.arange(4))}
    actual = {"a": torch.ones(4), "b": (torch.ones(4) * 1.5, torch.zeros(4).long())}  # integers are not evaluated
    assert output_error(actual, expected) == pytest.approx(0.5)


def test_outputs_of_different_structure_are_an_error():
    with pytest.raises(ValueError):
        output_error((torch.ones(1),), (torch.ones(1), torch.ones(1)))
