"""Gathered weights of any shape for the kernels in float32."""

import random
from collections.abc import Sequence

import torch
from sparsefront_kernels import FORMATS
from sparsefront_kernels.format import SparseFormat


def draw_gathered(case: random.Random, *, tile: int | Sequence[int], largest: int) -> SparseFormat:
    """A weight of random shape, density and dropped outputs; what is pruned is NaN.

    Args:
        tile: outputs of a tile, or those to choose from.
        largest: number of inputs and of outputs.
    """
    n, k = case.randint(1, largest), case.randint(1, largest)
    tile = tile if isinstance(tile, int) else case.choice(tile)
    density, dropped = case.choice([0.0, 0.05, 0.3, 0.6, 1.0]), case.choice([0.0, 0.4])
    survivors = (torch.rand(n) >= dropped).nonzero().flatten()
    tiles = -(-len(survivors) // tile)
    share = density * (0.5 + torch.rand(tiles, 1)) if density < 1 else 1.0
    drawn = torch.rand(tiles, k) < share
    drawn[::5] = density == 1  # empty tiles
    mask = torch.zeros(n, k, dtype=torch.bool)
    mask[survivors] = drawn.repeat_interleave(tile, 0)[: len(survivors)]
    weight = torch.randn(n, k)
    weight[~mask] = torch.nan
    return FORMATS["gathered"].from_dense(weight, mask, tile=tile, drop_empty_outputs=dropped > 0)
