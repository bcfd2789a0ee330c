"""4x4 tiles that are 2:4 in both directions."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sparsefront_kernels import FORMATS

from sparsefront.allocation.per_layer import PerLayer
from sparsefront.errors import InvalidSetting
from sparsefront.patterns.n_m import NM, tile_candidates
from sparsefront.pruning.make_masks import make_masks

TILES = NM(transposable=True)


def scores(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed))


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
def test_the_candidates_are_all_that_there_are_in_the_documented_order(kept, count):
    assert [tuple(tile) for tile in tile_candidates(kept).int().tolist()] == masks_by_loops(kept)
    assert len(tile_candidates(kept)) == count


@settings(max_examples=40, derandomize=True)
@given(importance=st.lists(st.lists(st.integers(0, 3), min_size=12, max_size=12), min_size=8, max_size=8))
def test_every_tile_keeps_the_most_that_it_can(importance):
    mask = TILES.mask(torch.tensor(importance).float(), 0.5)
    assert mask.int().tolist() == oracle(importance)
    TILES.check(mask, 0.5)


def test_worked_example():
    """The two largest of row 0 are in columns 0 and 1, and so are those of row 1: rows 2 and 3 have to do without them.

    Of the first row and column 9 + 8 and 9 + 7 stay; row 3 loses its 6 in column 0.
    """
    importance = torch.tensor([[9, 8, 1, 0], [7, 5, 0, 2], [0, 1, 4, 3], [6, 0, 3, 3]]).float()
    kept = TILES.mask(importance, 0.5)
    assert kept.int().tolist() == [[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 1], [0, 0, 1, 1]]


def test_all_equal_scores_keep_the_earlier_places():
    assert TILES.mask(torch.ones(4, 4), 0.5).int().tolist() == [[1, 1, 0, 0]] * 2 + [[0, 0, 1, 1]] * 2


def test_the_transpose_is_2_4_too():
    weight = scores(24, 32)
    mask = TILES.mask(weight, 0.5)
    for family, parameters in (("n_m", {"n": 2, "m": 4}), ("semi_structured", {})):
        for matrix, kept in ((weight, mask), (weight.t().contiguous(), mask.t().contiguous())):
            stored = FORMATS[family].from_dense(matrix, kept, **parameters)
            assert torch.equal(stored.to_dense(), matrix * kept)
    assert TILES.storage((24, 32), 0.5) == ("n_m", {"n": 2, "m": 4})
    TILES.check(mask.t(), 0.5)


def test_at_most_what_strips_keep():
    weight = scores(64, 64)
    tiles, strips = (float(weight[pattern.mask(weight, 0.5)].sum()) for pattern in (TILES, NM(2, 4)))
    assert 0.9 * strips < tiles <= strips


@pytest.mark.parametrize("seed", range(3))
def test_masks_on_the_way_nest_through_3_of_4(seed):
    """New scores at every update; each tile keeps as many in all rows and columns, and tiles differ by at most one."""
    masks, per_row = None, []
    for update, sparsity in enumerate((0.0, 0.2, 0.25, 0.4, 0.49, 0.5, 0.5)):
        layers = {"a": scores(16, 24, seed=100 * seed + update)}
        tighter = make_masks(layers, TILES, PerLayer(), sparsity, final_sparsity=0.5, previous=masks)
        mask = tighter["a"]
        assert masks is None or not (mask & ~masks["a"]).any()
        tiles = mask.view(4, 4, 6, 4).int()
        kept = tiles[:, :1, :, :].sum(dim=3, keepdim=True)
        assert (tiles.sum(dim=1, keepdim=True) == kept).all() and (tiles.sum(dim=3, keepdim=True) == kept).all()
        per_row.append(sorted(set(kept.flatten().tolist())))
        masks = tighter
    assert per_row == [[4], [3, 4], [3], [2, 3], [2, 3], [2], [2]]
    TILES.check(masks["a"], 0.5)


def test_within_every_mask_of_3_there_is_one_of_2():
    threes, twos = tile_candidates(3), tile_candidates(2)
    fits = ~(twos[None] & ~threes[:, None]).any(dim=2)  # [24, 90]
    assert fits.any(dim=1).all()


def test_a_mask_that_is_2_4_along_rows_alone_is_rejected():
    strips = torch.tensor([[True, True, False, False]]).repeat(4, 2)
    NM(2, 4).check(strips, 0.5)
    with pytest.raises(ValueError, match="n_m: column 0 of the tiles in rows 0 to 3 keeps 4 of 4, not 2"):
        TILES.check(strips, 0.5)


@pytest.mark.parametrize(
    ("keys", "key"),
    [
        ({"n": 1, "m": 4}, "n"),
        ({"m": 8}, "m"),
        ({"n": 4, "m": 8}, "n"),
        ({"permutation": "search"}, "permutation"),
    ],
)
def test_other_windows_and_a_permutation_are_rejected(keys, key):
    with pytest.raises(InvalidSetting, match="transposable") as caught:
        NM(transposable=True, **keys)
    assert caught.value.key == key
    NM(2, 4, transposable=True)


@pytest.mark.parametrize("sparsity", [0.0, 0.4, 0.75])
def test_another_sparsity_is_rejected(sparsity):
    with pytest.raises(InvalidSetting, match=f"sparsity 0.5, not {sparsity:g}") as caught:
        TILES.check_sparsity(sparsity)
    assert caught.value.key == "transposable"


def test_layers_that_tiles_do_not_divide_are_rejected():
    assert (
        TILES.unsupported_reason((10, 16), 0.5) == "outputs 10 are not a multiple of 4, the side of a transposable tile"
    )
    assert TILES.unsupported_reason((8, 18), 0.5) == "inputs 18 are not a multiple of m 4"
    assert TILES.unsupported_reason((8, 16), 0.5) is None
