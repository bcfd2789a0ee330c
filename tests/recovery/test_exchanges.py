"""Exchanges of weights against brute force over all of them, on the layer's outputs themselves."""

import itertools

import pytest
import torch
from torch import Tensor

from sparsefront.recovery.sparse_swaps import exchange_weights


def inputs(rows: int, columns: int, seed: int, correlation: float = 0.8) -> Tensor:
    """Inputs [rows, columns] that tell of each other, as a network's do."""
    generator = torch.Generator().manual_seed(seed)
    shared = torch.randn(rows, 3, generator=generator) @ torch.randn(3, columns, generator=generator)
    own = torch.randn(rows, columns, generator=generator)
    return (correlation * shared + (1 - correlation) * own).double()


def error(x: Tensor, row: Tensor, kept: list[bool]) -> float:
    """|X w - X (m w)|^2 from the outputs, without a Gram matrix."""
    return float((x @ (row * ~torch.tensor(kept))).square().sum())


def all_exchanges(kept: list[bool], span: int, allowed: list[bool]):
    """(column pruned, column brought back) of every exchange within a span."""
    for out, back in itertools.permutations(range(len(kept)), 2):
        if kept[out] and not kept[back] and allowed[back] and out // span == back // span:
            yield out, back


def exchanged(kept: list[bool], out: int, back: int) -> list[bool]:
    return [kept[k] if k not in (out, back) else k == back for k in range(len(kept))]


def best_swap(x: Tensor, row: Tensor, kept: list[bool], span: int, allowed: list[bool]) -> tuple[float, list[bool]]:
    """The lowest error that one exchange reaches, and its mask; the mask itself where there is none to make."""
    found = [exchanged(kept, *pair) for pair in all_exchanges(kept, span, allowed)]
    return min(((error(x, row, mask), mask) for mask in found), default=(error(x, row, kept), kept))


def case(rows: int, columns: int, seed: int, density: float, span: int | None) -> tuple[Tensor, Tensor, Tensor]:
    """X [64, K], W [N, K], and the mask of the largest weights of each span."""
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(rows, columns, generator=generator).double()
    width = span or columns
    ranked = weight.abs().reshape(rows, -1, width).argsort(dim=2, descending=True).argsort(dim=2)
    mask = (ranked < round(density * width)).reshape(rows, columns)
    return inputs(64, columns, seed), weight, mask


@pytest.mark.parametrize("span", [None, 8, 4])
@pytest.mark.parametrize("seed", range(4))
def test_every_exchange_is_the_best(seed, span):
    x, weight, start = case(3, 16, seed, 0.5, span)
    gram, everything = x.T @ x, [True] * 16
    for row in range(3):
        kept, taken = start[row].tolist(), 0
        while True:
            found = exchange_weights(weight[row : row + 1], start[row : row + 1], gram, span=span, limit=taken + 1)
            lowest, mask = best_swap(x, weight[row], kept, span or 16, everything)
            if found.exchanges == taken:
                break
            assert found.mask[0].tolist() == mask, "the best of all exchanges is taken, one at a time"
            assert found.error_after == pytest.approx(lowest, rel=1e-9) and lowest < error(x, weight[row], kept)
            kept, taken = mask, taken + 1
        assert lowest >= error(x, weight[row], kept) * (1 - 1e-9), "no exchange helps any more"
        whole = exchange_weights(weight[row : row + 1], start[row : row + 1], gram, span=span)
        assert whole.mask[0].tolist() == kept and whole.exchanges == taken
        assert whole.error_before == pytest.approx(error(x, weight[row], start[row].tolist()))
    together = exchange_weights(weight, start, gram, span=span)
    alone = [exchange_weights(weight[r : r + 1], start[r : r + 1], gram, span=span) for r in range(3)]
    assert torch.equal(together.mask, torch.cat([one.mask for one in alone])), "rows do not meet"
    assert together.exchanges == sum(one.exchanges for one in alone) > 0
    width = span or 16
    assert torch.equal(together.mask.reshape(3, -1, width).sum(2), start.reshape(3, -1, width).sum(2))
