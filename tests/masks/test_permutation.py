"""An order of outputs and inputs: there and back, and the same product in either."""

import pytest
import torch

from sparsefront.masks.weight_view import Permutation


def order(length: int, seed: int) -> torch.Tensor:
    return torch.randperm(length, generator=torch.Generator().manual_seed(seed))


OUTPUTS, INPUTS = order(6, 1), order(9, 2)
PERMUTATIONS = {
    "none": Permutation(),
    "outputs": Permutation(outputs=OUTPUTS),
    "inputs": Permutation(inputs=INPUTS),
    "both": Permutation(OUTPUTS, INPUTS),
}


@pytest.fixture(params=PERMUTATIONS)
def permutation(request) -> Permutation:
    return PERMUTATIONS[request.param]


def test_restoring_is_the_way_back(permutation):
    matrix = torch.arange(54).view(6, 9)
    permuted = permutation.apply(matrix)
    assert torch.equal(permutation.invert(permuted), matrix)
    assert permuted.shape == matrix.shape


def test_product_through_the_orders(permutation):
    weight, x = torch.randn(6, 9, dtype=torch.float64), torch.randn(4, 9, dtype=torch.float64)
    orders = permutation.orders()
    read = x if "input_order" not in orders else x[:, orders["input_order"]]
    y = read @ permutation.apply(weight).t()
    if "output_order" in orders:
        y = torch.empty_like(y).index_copy_(1, orders["output_order"], y)
    torch.testing.assert_close(y, x @ weight.t())


def test_orders_name_those_that_there_are():
    assert {name: set(each.orders()) for name, each in PERMUTATIONS.items()} == {
        "none": set(),
        "outputs": {"output_order"},
        "inputs": {"input_order"},
        "both": {"output_order", "input_order"},
    }
