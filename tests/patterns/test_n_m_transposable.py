"""4x4 tiles that are 2:4 in both directions."""

import itertools

import pytest
import torch
from every_pattern import scores
from hypothesis import given, settings
from hypothesis import strategies as st
from sparsefront_kernels import FORMATS

from sparsefront.patterns.n_m import NM, tile_candidates

TILES = NM(transposable=True)


def masks_by_loops(kept: int) -> list[tuple[int, ...]]:
    """All 2^16 tiles, those that keep earlier places first, sieved by their sums."""
    found = []
    for tile in itertools.product((1, 0), repeat=16):
        rows = [sum(tile[4 * i : 4 * i + 4]) for i in range(4)]
        columns = [sum(tile[j::4]) for j in range(4)]
        if rows == columns == [kept] * 4:
            found.append(tile)
    return found


NINETY = masks_by_loops(2)


def oracle(importance: list[list[int]]) -> list[list[int]]:
    """Of each tile the mask that keeps most, the first of equals."""
    result = [[0] * len(importance[0]) for _ in importance]
    for top, left in itertools.product(range(0, len(importance), 4), range(0, len(importance[0]), 4)):
        tile = [importance[top + i][left + j] for i in range(4) for j in range(4)]
        best = max(NINETY, key=lambda mask: sum(itertools.compress(tile, mask)))  # max takes the first of equals
        for place, keep in enumerate(best):
            result[top + place // 4][left + place % 4] = keep
    return result


@pytest.mark.parametrize(("kept", "count"), [(2, 90), (3, 24), (4, 1)])
def test_candidates_are_complete_and_ordered(kept, count):
    assert [tuple(tile) for tile in tile_candidates(kept).int().tolist()] == masks_by_loops(kept)
    assert len(tile_candidates(kept)) == count


@settings(max_examples=40, derandomize=True)
@given(importance=st.lists(st.lists(st.integers(0, 3), min_size=12, max_size=12), min_size=8, max_size=8))
def test_every_tile_keeps_the_most(importance):
    mask = TILES.mask(torch.tensor(importance).float(), 0.5)
    assert mask.int().tolist() == oracle(importance)
    TILES.check(mask, 0.5)


def test_the_transpose_is_2_4_too():
    weight = scores(24, 32)
    mask = TILES.mask(weight, 0.5)
    for family, parameters in (("n_m", {"n": 2, "m": 4}), ("semi_structured", {})):
        for matrix, kept in ((weight, mask), (weight.t().contiguous(), mask.t().contiguous())):
            stored = FORMATS[family].from_dense(matrix, kept, **parameters)
            assert torch.equal(stored.to_dense(), matrix * kept)
    assert TILES.storage((24, 32), 0.5) == ("n_m", {"n": 2, "m": 4}) and TILES.outputs_together == 4
    TILES.check(mask.t(), 0.5)


def test_mask_along_rows_alone_is_rejected():
    strips = torch.tensor([[True, True, False, False]]).repeat(4, 2)
    NM(2, 4).check(strips, 0.5)
    with pytest.raises(ValueError, match="n_m: column 0 of the tiles in rows 0 to 3 keeps 4 of 4, not 2"):
        TILES.check(strips, 0.5)
