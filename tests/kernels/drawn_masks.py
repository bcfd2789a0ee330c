"""Masks [N, K] with the structure of each family, drawn from a seed."""

from collections.abc import Callable

import torch
from torch import Tensor

Draw = Callable[[int, int], Tensor]  # (n, k) -> bool [n, k]


def chance(*shape: int, seed: int = 1) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed))


def order(length: int, seed: int = 2) -> Tensor:
    return torch.randperm(length, generator=torch.Generator().manual_seed(seed))


def free(density: float, seed: int = 1) -> Draw:
    return lambda n, k: chance(n, k, seed=seed) < density


def vectors(tile: int, density: float, seed: int = 1) -> Draw:
    """Every `tile` consecutive outputs share their inputs."""
    return lambda n, k: (chance(-(-n // tile), k, seed=seed) < density).repeat_interleave(tile, dim=0)[:n]


def tile_wise(tile: int, density: float, seed: int = 1, dropped: float = 1 / 3) -> Draw:
    """A share of the outputs dropped, then tiles of the survivors, each with its own share of inputs."""

    def draw(n: int, k: int) -> Tensor:
        survivors = (chance(n, seed=seed) >= dropped).nonzero().flatten()
        tiles = -(-len(survivors) // tile)
        # uneven: from none to twice the mean
        share = torch.linspace(0, 2 * density, tiles)[:, None] if tiles > 1 else torch.full((1, 1), density)
        mask = torch.zeros(n, k, dtype=torch.bool)
        kept = chance(tiles, k, seed=seed) < share
        mask[survivors] = kept.repeat_interleave(tile, dim=0)[: len(survivors)]
        return mask

    return draw


def blocks(bn: int, bk: int, density: float, seed: int = 1) -> Draw:
    return lambda n, k: (
        (chance(n // bn, k // bk, seed=seed) < density).repeat_interleave(bn, 0).repeat_interleave(bk, 1)
    )


def n_of_m(n_kept: int, m: int, density: float = 1.0, seed: int = 1) -> Draw:
    """n of every m; a density below 1 leaves groups with fewer."""

    def draw(n: int, k: int) -> Tensor:
        places = chance(n, k // m, m, seed=seed).argsort(dim=2).argsort(dim=2)
        return (places < n_kept).reshape(n, k) & (chance(n, k, seed=seed) < density)

    return draw


def both(first: Draw, second: Draw) -> Draw:
    """What both keep."""
    return lambda n, k: first(n, k) & second(n, k)


def halved_tiles(tile: int, density: float, seed: int = 1, dropped: float = 1 / 3) -> Draw:
    """A share of the outputs dropped, then tiles of the survivors; of every four inputs of its tile an output keeps two."""

    def draw(n: int, k: int) -> Tensor:
        of_tiles = tile_wise(tile, density, seed, dropped)(n, k)
        mask, rows = torch.zeros_like(of_tiles), of_tiles.any(dim=1).nonzero().flatten()
        for part in rows.split(tile) if len(rows) else ():
            inputs = of_tiles[part[0]].nonzero().flatten()
            windows = -(-len(inputs) // 4)
            scores = chance(len(part), windows * 4, seed=seed)
            scores[:, len(inputs) :] = 2  # what the last window lacks comes last
            kept = (scores.view(len(part), windows, 4).argsort(dim=2).argsort(dim=2) < 2).flatten(1)[:, : len(inputs)]
            mask[part[:, None], inputs] = kept
        return mask

    return draw


def any_order(draw: Draw, *, outputs: bool = False, inputs: bool = False, seed: int = 2) -> Draw:
    """The mask of `draw` with its outputs or inputs moved to where `order` says."""

    def moved(n: int, k: int) -> Tensor:
        mask = draw(n, k)
        mask = mask[order(n, seed).argsort()] if outputs else mask
        return mask[:, order(k, seed).argsort()] if inputs else mask

    return moved


def overlaid(draw: Draw, density: float, seed: int = 3) -> Draw:
    """The mask of `draw` and a few weights wherever they are."""
    return lambda n, k: draw(n, k) | (chance(n, k, seed=seed) < density)


def same_count(block: int, count: int, seed: int = 1) -> Draw:
    """`count` blocks in every row of blocks."""

    def draw(n: int, k: int) -> Tensor:
        places = chance(n // block, k // block, seed=seed).argsort(dim=1).argsort(dim=1)
        return (places < count).repeat_interleave(block, 0).repeat_interleave(block, 1)

    return draw
