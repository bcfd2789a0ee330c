"""SparseGPT's sweep: against plain loops, against the exact optimum, and where it chooses for itself."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sparsefront.obs.sweep import Given, InBlocks, InWindows, damp_hessian, input_hessian, inverse_factor, sweep


def swept_by_loops(weight, hessian, choose):
    """The sweep as the paper's section 3.3 defines it, without Cholesky factor, blocks or shared rows.

    Row by row: at column j the weight goes if it is to go, and the columns to its right make up for it by the inverse of
    the Hessian of the columns from j on. `choose(saliency [n, k - j], j)` -> the kept of the columns it decides at j, or
    None where column j was decided before.
    """
    n, k = weight.shape
    weight, kept = weight.clone(), torch.zeros(n, k, dtype=torch.bool)
    inverses = [torch.linalg.inv(hessian[j:, j:]) for j in range(k)]
    for j in range(k):
        saliency = torch.tensor([[weight[r, c] ** 2 / inverses[c][0, 0] for c in range(j, k)] for r in range(n)])
        chosen = choose(saliency, j)
        if chosen is not None:
            kept[:, j : j + chosen.shape[1]] = chosen
        for r in range(n):
            if not kept[r, j]:
                weight[r, j:] -= weight[r, j] / inverses[j][0, 0] * inverses[j][0]
                weight[r, j] = 0
    return weight, kept


def in_windows(n: int, m: int, allowed: torch.Tensor) -> InWindows:
    return InWindows(torch.full((allowed.shape[0], allowed.shape[1] // m), n), m, allowed)


@pytest.mark.parametrize("block", [1, 5, 12, 128])
def test_given_mask_against_loops(layer, block):
    weight, hessian, mask = layer(0)
    before = weight.clone()
    updated, kept = sweep(weight, inverse_factor(hessian), Given(mask), block=block)
    expected, _ = swept_by_loops(weight, hessian, lambda saliency, j: mask[:, j:] if j == 0 else None)
    torch.testing.assert_close(updated, expected)
    assert torch.equal(kept, mask) and (updated[~mask] == 0).all() and torch.equal(weight, before)


@pytest.mark.parametrize(("n", "m"), [(2, 4), (1, 4), (1, 3), (5, 6)])
@pytest.mark.parametrize("block", [1, 5, 128])
def test_windows_against_loops(layer, n, m, block):
    weight, hessian, mask = layer(1)
    selection = in_windows(n, m, torch.ones_like(mask))
    updated, kept = sweep(weight, inverse_factor(hessian), selection, block=block)

    def choose(saliency, j):
        if j % m:
            return None
        chosen = torch.zeros(len(saliency), m, dtype=torch.bool)
        for row in range(len(saliency)):
            chosen[row, sorted(range(m), key=lambda c: (-saliency[row, c], c))[:n]] = True
        return chosen

    expected, expected_mask = swept_by_loops(weight, hessian, choose)
    assert torch.equal(kept, expected_mask)
    torch.testing.assert_close(updated, expected)


@pytest.mark.parametrize("block", [3, 4, 128])
def test_single_weights_against_loops(layer, block):
    """In every block of columns the same share of the weights, the cheapest of all rows together."""
    weight, hessian, mask = layer(2)
    keeping = 23
    selection = InBlocks(keeping, torch.ones_like(mask))
    updated, kept = sweep(weight, inverse_factor(hessian), selection, block=block)

    def choose(saliency, j):
        if j % block:
            return None
        columns = min(block, 12 - j)
        count = keeping * (j + columns) // 12 - keeping * j // 12
        places = [(r, c) for r in range(5) for c in range(columns)]
        chosen = torch.zeros(5, columns, dtype=torch.bool)
        for r, c in sorted(places, key=lambda place: (-saliency[place], place))[:count]:
            chosen[r, c] = True
        return chosen

    expected, expected_mask = swept_by_loops(weight, hessian, choose)
    assert torch.equal(kept, expected_mask) and int(kept.sum()) == keeping
    torch.testing.assert_close(updated, expected)


@settings(max_examples=60)
@given(
    seed=st.integers(0, 10_000),
    shape=st.sampled_from([(1, 4), (3, 8), (4, 12), (2, 20)]),
    block=st.integers(1, 24),
    window=st.sampled_from([None, (1, 2), (2, 4), (3, 4), (4, 4)]),
)
def test_pruned_weights_stay_pruned(seed, shape, block, window):
    generator = torch.Generator().manual_seed(seed)
    # Whole numbers, so that there are ties; an earlier mask that leaves every window enough.
    weight = torch.randint(-2, 3, shape, generator=generator).double()
    x = torch.randint(-2, 3, (40, shape[1]), generator=generator).double()
    hessian, dead = damp_hessian(input_hessian(x), 0.01)
    if window is None:
        allowed = torch.rand(shape, generator=generator) < 0.7
        selection = InBlocks(int(allowed.sum()) // 2, allowed)
    else:
        earlier = torch.rand(shape, generator=generator).unflatten(1, (-1, window[1]))
        allowed = (earlier.argsort(-1).argsort(-1) < max(window[0], window[1] - 1)).flatten(1)
        selection = in_windows(*window, allowed)
    updated, kept = sweep(weight, inverse_factor(hessian), selection, dead=dead, block=block)
    assert not (kept & ~allowed).any() and (updated[~kept] == 0).all() and updated.isfinite().all()
    if window is None:
        assert int(kept.sum()) == selection.keeping
    else:
        assert (kept.unflatten(1, (-1, window[1])).sum(-1) == window[0]).all()
    again, same = sweep(weight, inverse_factor(hessian), selection, dead=dead, block=block)
    assert torch.equal(again, updated) and torch.equal(same, kept)
