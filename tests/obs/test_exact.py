"""Exact OBS against least squares and against trying everything."""

import pytest
import torch
from exact_obs import exact_prune, exact_update


def least_squares(weight, hessian, mask):
    """Row by row: the weights on the kept inputs that reproduce the dense output best."""
    best = torch.zeros_like(weight)
    for row in range(len(weight)):
        kept = mask[row].nonzero().flatten()
        if len(kept):
            best[row, kept] = torch.linalg.solve(hessian[kept][:, kept], hessian[kept] @ weight[row])
    return best


@pytest.mark.parametrize("seed", range(5))
def test_a_given_mask_ends_at_the_least_squares_solution(layer, seed):
    weight, hessian, mask = layer(seed)
    updated = exact_update(weight, hessian, mask)
    assert (updated - least_squares(weight, hessian, mask)).abs().max() < 1e-6
    assert (updated[~mask] == 0).all()


@pytest.mark.parametrize("seed", range(3))
def test_every_removal_is_the_cheapest_one(layer, error, seed):
    """Oracle: at each step of each row, least squares without each of the weights that are left."""
    weight, hessian, _ = layer(seed, n=3, k=7)
    mask = torch.ones_like(weight, dtype=torch.bool)
    for keep in range(6, 2, -1):
        for row in range(3):
            costs = {}
            for column in mask[row].nonzero().flatten().tolist():
                without = mask[row : row + 1].clone()
                without[0, column] = False
                candidate = least_squares(weight[row : row + 1], hessian, without)
                costs[column] = float(error(candidate, weight[row : row + 1], hessian))
            mask[row, min(costs, key=costs.get)] = False
        updated, kept = exact_prune(weight, hessian, keep)
        assert torch.equal(kept, mask)
        torch.testing.assert_close(updated, least_squares(weight, hessian, mask))


def test_among_equals_the_lower_index_stays():
    weight, hessian = torch.ones(1, 4, dtype=torch.float64), torch.eye(4, dtype=torch.float64)
    assert exact_prune(weight, hessian, 2)[1].tolist() == [[True, True, False, False]]
