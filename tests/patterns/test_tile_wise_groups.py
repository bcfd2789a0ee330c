"""Whole tiles, inputs in multiples and scores that treat tiles of all widths alike: what tile_wise does for the hardware."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from sparsefront.allocation.global_threshold import GlobalThreshold
from sparsefront.patterns.tile_wise import SOURCES, TileWise
from sparsefront.pruning.make_masks import make_masks

few = settings(max_examples=60, derandomize=True)


def suited(granularity: int, input_multiple: int = 16, **settings: object) -> TileWise:
    defaults = {"whole_tiles": True, "aggregate": "rms"}
    return TileWise(granularity, input_multiple=input_multiple, **defaults | settings)


def uneven(*shape: int, seed: int) -> Tensor:
    """Scores without ties whose outputs and inputs differ in scale."""
    draw = torch.Generator().manual_seed(seed)
    return (
        torch.rand(*shape, generator=draw)
        * torch.rand(shape[0], 1, generator=draw)
        * torch.rand(1, shape[1], generator=draw)
    )


def test_groups_larger_than_the_layer():
    scores = uneven(40, 48, seed=1)
    assert torch.equal(TileWise(10**9).mask(scores, 0.75), TileWise(40).mask(scores, 0.75))
    everything = TileWise(8, input_multiple=48).mask(scores, 0.75)
    assert torch.equal(TileWise(8, input_multiple=10**9).mask(scores, 0.75), everything)


def oracle(
    importance: list[Tensor], sparsity: float, width: int, multiple: int, *, whole: bool, root: bool
) -> list[Tensor]:
    """Plain loops in float64. importance: one [N, K] per layer, ranked together; root: scores divide by the root of lengths."""
    masks = [torch.ones_like(scores, dtype=torch.bool) for scores in importance]
    total = sum(mask.numel() for mask in masks)

    def score(group: list[tuple[int, int]], layer: int) -> float:
        squares = sum(float(importance[layer][i, j]) ** 2 for i, j in group)
        return squares / len(group) if root else squares / len(group) ** 2

    def drop(
        lines: list[tuple[int, list[list[tuple[int, int]]]]], target: float, together: int, spared: int = 0
    ) -> None:
        """Lines of (layer, groups): sort each, cut it into runs, and drop the worst runs of all while they fit; the best
        `spared` groups of a line stay.
        """
        runs = []
        for layer, groups in lines:
            ranked = sorted(groups, key=lambda group: -score(group, layer))
            for start in range(spared, len(ranked), together):
                run = ranked[start : start + together]
                runs.append((sum(score(group, layer) for group in run) / len(run), layer, list(itertools.chain(*run))))
        left = math.floor(target * total + 1e-6) - sum(int((~mask).sum()) for mask in masks)
        for _, layer, weights in sorted(runs, key=lambda run: run[0]):
            if len(weights) > left:
                break
            left -= len(weights)
            for i, j in weights:
                masks[layer][i, j] = False

    outputs = [(n, [[(i, j) for j in range(mask.shape[1])] for i in range(len(mask))]) for n, mask in enumerate(masks)]
    together = width if whole else 1
    drop(outputs, 1 - math.sqrt(1 - sparsity), together, spared=together if together > 1 else 0)
    tiles = []
    for n, mask in enumerate(masks):
        alive = [i for i in range(len(mask)) if mask[i].any()]
        for start in range(0, len(alive), width):
            rows = alive[start : start + width]
            tiles.append((n, [[(i, j) for i in rows] for j in range(mask.shape[1])]))
    drop(tiles, sparsity, multiple)
    return masks


@few
@given(
    rows=st.integers(1, 11),
    columns=st.integers(1, 9),
    granularity=st.sampled_from([1, 2, 4]),
    multiple=st.sampled_from([1, 2, 4]),
    whole=st.booleans(),
    root=st.booleans(),
    sparsity=st.floats(0, 0.99),
    seed=st.integers(0, 1000),
)
def test_one_layer_against_loops(rows, columns, granularity, multiple, whole, root, sparsity, seed):
    importance = uneven(rows, columns, seed=seed)
    aggregate = "rms" if root else "l2_over_length"
    pattern = TileWise(granularity, whole_tiles=whole, input_multiple=multiple, aggregate=aggregate)
    (expected,) = oracle([importance], sparsity, granularity, multiple, whole=whole, root=root)
    mask = pattern.mask(importance, sparsity)
    assert torch.equal(mask, expected)
    pattern.check(mask, sparsity)


@few
@given(
    shapes=st.lists(st.tuples(st.integers(1, 9), st.integers(1, 7)), min_size=2, max_size=3),
    root=st.booleans(),
    sparsity=st.floats(0, 0.95),
    seed=st.integers(0, 1000),
)
def test_layers_ranked_together_against_loops(shapes, root, sparsity, seed):
    importance = [uneven(*shape, seed=seed + i) for i, shape in enumerate(shapes)]
    aggregate = "rms" if root else "l2_over_length"
    pattern = TileWise(2, whole_tiles=True, input_multiple=3, aggregate=aggregate)
    masks = make_masks({str(i): scores for i, scores in enumerate(importance)}, pattern, GlobalThreshold(), sparsity)
    expected = oracle(importance, sparsity, 2, 3, whole=True, root=root)
    assert all(torch.equal(mask, wanted) for mask, wanted in zip(masks.values(), expected, strict=True))


def test_signed_scores_rank_shrinking_runs_lowest():
    importance = torch.cat([-torch.ones(4, 8), 0.5 * torch.ones(4, 8)])
    assert suited(4, 2).mask(importance, 0.75).any(dim=1).tolist() == [False] * 4 + [True] * 4


def test_mask_of_part_of_a_tile():
    mask = torch.ones(8, 32, dtype=torch.bool)
    mask[0] = False
    with pytest.raises(ValueError, match="tile_wise: 7 outputs survive: a part of a tile of granularity 4"):
        suited(4).check(mask, 0.5)
    mask[:4] = False
    suited(4).check(mask, 0.5)
    mask[:, 20:] = False
    with pytest.raises(ValueError, match="tile_wise: tile 0 keeps 20 inputs, neither a multiple of 16 nor all"):
        suited(4).check(mask, 0.5)
    TileWise(4, **SOURCES).check(mask, 0.5)
