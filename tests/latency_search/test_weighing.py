"""Errors of products are added by what they do to the loss."""

import pytest
import torch

from sparsefront.allocation.assignment import Item, Option
from sparsefront.latency_search.evaluating import FLOOR, CandidateMasks, weighted
from sparsefront.patterns.element_wise import ElementWise

ERRORS = {0.25: 0.1, 0.5: 0.3, 0.75: 0.6}
LAYERS = ("matters", "little", "helps")


def items() -> list[Item]:
    options = [Option(None, 0.0), *(Option(0, sparsity, error) for sparsity, error in ERRORS.items())]
    return [Item((layer,), None, options) for layer in LAYERS]


def masks() -> CandidateMasks:
    return CandidateMasks({layer: torch.rand(8, 8) for layer in LAYERS}, (ElementWise(),))


def loss(made: dict[str, torch.Tensor]) -> float:
    """Rises by 4 and 1 for each part of the weights that goes; what `helps` lowers it."""
    rates = {"matters": 4.0, "little": 1.0, "helps": -1.0}
    return 2.0 + sum(rates[layer] * float((~mask).float().mean()) for layer, mask in made.items())


def test_each_error_counts_by_the_rise_of_the_loss():
    found = weighted(items(), masks(), loss)
    matters, little, helps = ([option.error for option in item.options] for item in found)
    weight = (0.5 + 0.75) / (0.3 + 0.6)  # of the options that are tried
    assert little == pytest.approx([0.0, *(weight * error for error in ERRORS.values())])
    assert matters == pytest.approx([4 * error for error in little])
    least = FLOOR * (4 + 1) / 2 * weight
    assert helps == pytest.approx([0.0, *(least * error for error in ERRORS.values())])


def test_a_loss_that_tells_nothing_leaves_errors_as_they_are():
    assert weighted(items(), masks(), lambda made: 1.0) == items()


def test_an_item_that_no_option_changes():
    dense = [Item(("matters",), None, [Option(None, 0.0)]), *items()[1:]]
    assert weighted(dense, masks(), loss)[0] == dense[0]
