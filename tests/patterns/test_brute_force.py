"""Each pattern against an oracle of plain loops that knows the definition and none of the implementation.

Scores are small whole numbers, so that ties are everywhere; group scores are compared as exact fractions (the square of
l2/length), so that equal groups are equal.
"""

import math
from fractions import Fraction

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sparsefront.allocation.global_threshold import GlobalThreshold
from sparsefront.patterns.base import Pattern
from sparsefront.patterns.block_2_4 import Block24
from sparsefront.patterns.block_wise import BlockWise
from sparsefront.patterns.channel import Channel
from sparsefront.patterns.element_wise import ElementWise
from sparsefront.patterns.n_m import NM
from sparsefront.patterns.shuffled_block import ShuffledBlock
from sparsefront.patterns.tile_2_4 import Tile24
from sparsefront.patterns.tile_wise import SOURCES, TileWise
from sparsefront.patterns.uniform import Uniform
from sparsefront.patterns.vector_wise import VectorWise
from sparsefront.pruning.make_masks import make_masks

Group = list[tuple[int, int]]  # the weights of one group


def score_of(importance: list[list[int]], group: Group) -> Fraction:
    return Fraction(sum(importance[i][j] ** 2 for i, j in group), len(group) ** 2)


def drop_lowest(importance: list[list[int]], groups: list[Group], allowed: int) -> set[tuple[int, int]]:
    """Groups in the order of their index go from the lowest score on, the later of equals first, while they fit."""
    order = sorted(range(len(groups)), key=lambda index: (score_of(importance, groups[index]), -index))
    gone: set[tuple[int, int]] = set()
    for index in order:
        if len(gone) + len(groups[index]) > allowed:
            break
        gone.update(groups[index])
    return gone


def allowed_of(total: int, sparsity: float) -> int:
    return math.floor(total * sparsity + 1e-6)


def blocks_of(rows: int, columns: int, height: int, width: int) -> list[Group]:
    return [
        [(i, j) for i in range(top, top + height) for j in range(left, left + width)]
        for top in range(0, rows, height)
        for left in range(0, columns, width)
    ]


def free_oracle(importance: list[list[int]], sparsity: float, height: int, width: int) -> set[tuple[int, int]]:
    rows, columns = len(importance), len(importance[0])
    return drop_lowest(importance, blocks_of(rows, columns, height, width), allowed_of(rows * columns, sparsity))


def balanced_oracle(importance: list[list[int]], n: int, m: int, height: int, width: int) -> set[tuple[int, int]]:
    rows, columns = len(importance), len(importance[0])
    groups = blocks_of(rows, columns, height, width)
    gone: set[tuple[int, int]] = set()
    for start in range(0, len(groups), m):  # a row of blocks holds a whole number of windows
        window = groups[start : start + m]
        best = sorted(range(m), key=lambda index: (-score_of(importance, window[index]), index))[:n]
        gone.update(weight for index in range(m) if index not in best for weight in window[index])
    return gone


def outputs_of(rows: int, columns: int) -> list[Group]:
    return [[(i, j) for j in range(columns)] for i in range(rows)]


def tile_inputs_of(
    layers: list[range] | None, importance: list[list[int]], gone: set[tuple[int, int]], width: int
) -> list[Group]:
    """The inputs of each tile: `width` outputs of a layer that keep anything. layers: the rows of each; None = all of one."""
    columns, groups = len(importance[0]), []
    for rows in layers or [range(len(importance))]:
        survivors = [i for i in rows if any((i, j) not in gone for j in range(columns))]
        tiles = [survivors[start : start + width] for start in range(0, len(survivors), width)]
        groups += [[(i, j) for i in tile] for tile in tiles for j in range(columns)]
    return groups


def tile_wise_oracle(
    importance: list[list[int]], sparsity: float, width: int, layers: list[range] | None = None
) -> set[tuple[int, int]]:
    rows, columns = len(importance), len(importance[0])
    outputs = outputs_of(rows, columns)
    gone = drop_lowest(importance, outputs, allowed_of(rows * columns, 1 - math.sqrt(1 - sparsity)))
    groups = tile_inputs_of(layers, importance, gone, width)
    return gone | drop_lowest(importance, groups, allowed_of(rows * columns, sparsity) - len(gone))


def overlay_oracle(
    importance: list[list[int]], sparsity: float, width: int, delta: float, layers: list[range] | None = None
) -> set[tuple[int, int]]:
    """What stays pruned: of all that tiles pruned to s + delta, the lowest single weights that make s."""
    pruned = sorted(tile_wise_oracle(importance, sparsity + delta, width, layers))
    total = len(importance) * len(importance[0])
    return drop_lowest(importance, [[weight] for weight in pruned], allowed_of(total, sparsity))


def apriori_oracle(
    importance: list[list[int]], sparsity: float, width: int, share: float, layers: list[range] | None = None
) -> set[tuple[int, int]]:
    rows, columns = len(importance), len(importance[0])
    everything = {(i, j) for i in range(rows) for j in range(columns)}
    wanted = everything - free_oracle(importance, sparsity, 1, 1)
    split = 1 - math.sqrt(1 - sparsity)
    outputs = outputs_of(rows, columns)
    gone = guided_drop(importance, outputs, wanted, set(), start=0.0, target=split, share=share)
    for i in range(rows):  # an output that stays although no weight of it is wanted counts as wanted throughout
        if not wanted & set(outputs[i]):
            wanted |= set(outputs[i])
    groups = tile_inputs_of(layers, importance, gone, width)
    return gone | guided_drop(importance, groups, wanted, gone, start=split, target=sparsity, share=share)


def guided_drop(
    importance: list[list[int]],
    groups: list[Group],
    wanted: set[tuple[int, int]],
    gone: set[tuple[int, int]],
    *,
    start: float,
    target: float,
    share: float,
) -> set[tuple[int, int]]:
    total = len(importance) * len(importance[0])

    def least_wanted(until: float) -> list[Group]:
        density = [Fraction(len(wanted & set(group)), len(group)) for group in groups]
        left, chosen = allowed_of(total, until) - len(gone), []
        for index in sorted(range(len(groups)), key=lambda index: (density[index], -index)):
            if len(groups[index]) > left:
                break
            left -= len(groups[index])
            chosen.append(groups[index])
        return chosen

    first, not_staying = least_wanted(start + share * (target - start)), least_wanted(1 - share * (1 - target))
    open_groups = [group for group in groups if group in not_staying and group not in first]
    dropped = {weight for group in first for weight in group}
    return dropped | drop_lowest(importance, open_groups, allowed_of(total, target) - len(gone) - len(dropped))


def uniform_oracle(importance: list[list[int]], sparsity: float, side: int) -> set[tuple[int, int]]:
    """Sort every row of blocks; the blocks of equal rank are one group."""
    rows, columns = len(importance), len(importance[0])
    blocks, per_row = blocks_of(rows, columns, side, side), columns // side
    ranked = [
        sorted(blocks[start : start + per_row], key=lambda block: -score_of(importance, block))
        for start in range(0, len(blocks), per_row)
    ]
    ranks = [[weight for row in ranked for weight in row[rank]] for rank in range(per_row)]
    return drop_lowest(importance, ranks, allowed_of(rows * columns, sparsity))


def windows_oracle(importance: list[list[int]], lists: list[Group]) -> set[tuple[int, int]]:
    """What 2 of every 4 consecutive weights prunes in lists of weights; a shorter last window keeps two at most."""
    gone: set[tuple[int, int]] = set()
    for weights in lists:
        for start in range(0, len(weights), 4):
            window = weights[start : start + 4]
            gone.update(sorted(window, key=lambda weight: -importance[weight[0]][weight[1]])[2:])
    return gone


def block_2_4_oracle(importance: list[list[int]], sparsity: float, height: int, width: int) -> set[tuple[int, int]]:
    rows, columns = len(importance), len(importance[0])
    gone = free_oracle(importance, 2 * sparsity - 1, height, width)
    lists = [[(i, j) for j in range(left, left + 4)] for i in range(rows) for left in range(0, columns, 4)]
    return gone | windows_oracle(importance, [weights for weights in lists if weights[0] not in gone])


def tile_2_4_oracle(importance: list[list[int]], sparsity: float, width: int) -> set[tuple[int, int]]:
    rows, columns = len(importance), len(importance[0])
    gone = tile_wise_oracle(importance, 2 * sparsity - 1, width)
    return gone | windows_oracle(
        importance, [[(i, j) for j in range(columns) if (i, j) not in gone] for i in range(rows)]
    )


def assert_prunes(pattern: Pattern, importance: list[list[int]], sparsity: float, gone: set[tuple[int, int]]) -> None:
    mask = pattern.mask(torch.tensor(importance, dtype=torch.float32), sparsity)
    assert set(map(tuple, (~mask).nonzero().tolist())) == gone
    pattern.check(mask, sparsity)


def assert_prunes_over_layers(
    pattern: Pattern, importance: list[list[int]], layers: list[range], sparsity: float, gone: set[tuple[int, int]]
) -> None:
    """One matrix cut into layers that are ranked together."""
    matrix = torch.tensor(importance, dtype=torch.float32)
    scores = {str(rows): matrix[rows.start : rows.stop] for rows in layers}
    masks = make_masks(scores, pattern, GlobalThreshold(), sparsity)
    assert set(map(tuple, (~torch.cat(list(masks.values()))).nonzero().tolist())) == gone


def matrices(rows: int, columns: int, largest: int = 4) -> st.SearchStrategy[list[list[int]]]:
    return st.lists(st.lists(st.integers(0, largest), min_size=columns, max_size=columns), min_size=rows, max_size=rows)


fractions = st.floats(0, 0.99)
few = settings(max_examples=40, derandomize=True)


@few
@given(importance=st.integers(1, 6).flatmap(lambda rows: matrices(rows, 5)), sparsity=fractions)
def test_element_wise(importance, sparsity):
    assert_prunes(ElementWise(), importance, sparsity, free_oracle(importance, sparsity, 1, 1))


@few
@given(importance=matrices(3, 24), window=st.sampled_from([(2, 4), (1, 4), (3, 8), (5, 6), (1, 2), (5, 12), (7, 24)]))
def test_n_m(importance, window):
    n, m = window
    assert_prunes(NM(n=n, m=m), importance, 1 - n / m, balanced_oracle(importance, n, m, 1, 1))


@few
@given(importance=matrices(6, 8), granularity=st.sampled_from([1, 2, 3, 6]), sparsity=fractions)
def test_vector_wise_free(importance, granularity, sparsity):
    gone = free_oracle(importance, sparsity, granularity, 1)
    assert_prunes(VectorWise(granularity=granularity), importance, sparsity, gone)


@few
@given(
    importance=matrices(6, 8), granularity=st.sampled_from([1, 2, 3]), window=st.sampled_from([(2, 4), (1, 4), (3, 8)])
)
def test_vector_wise_balanced(importance, granularity, window):
    n, m = window
    pattern = VectorWise(granularity=granularity, distribution="balanced", m=m)
    assert_prunes(pattern, importance, 1 - n / m, balanced_oracle(importance, n, m, granularity, 1))


@few
@given(importance=matrices(6, 8), sides=st.sampled_from([(2, 2), (3, 4), (1, 8), (6, 1)]), sparsity=fractions)
def test_block_wise_free(importance, sides, sparsity):
    gone = free_oracle(importance, sparsity, *sides)
    assert_prunes(BlockWise(granularity=f"{sides[0]}x{sides[1]}"), importance, sparsity, gone)


@few
@given(importance=matrices(4, 16), window=st.sampled_from([(2, 4), (1, 4), (3, 8)]))
def test_block_wise_balanced(importance, window):
    n, m = window
    pattern = BlockWise(granularity=2, distribution="balanced", m=m)
    assert_prunes(pattern, importance, 1 - n / m, balanced_oracle(importance, n, m, 2, 2))


@few
@given(
    importance=st.integers(1, 9).flatmap(lambda rows: matrices(rows, 6)),
    granularity=st.sampled_from([1, 2, 4, 16]),
    sparsity=fractions,
)
def test_tile_wise(importance, granularity, sparsity):
    gone = tile_wise_oracle(importance, sparsity, granularity)
    assert_prunes(TileWise(granularity=granularity, **SOURCES), importance, sparsity, gone)


@few
@given(
    importance=st.integers(1, 9).flatmap(lambda rows: matrices(rows, 6)),
    granularity=st.sampled_from([1, 2, 4]),
    delta=st.sampled_from([0.01, 0.05, 0.2]),
    sparsity=st.floats(0, 0.79),
)
def test_tile_wise_with_an_overlay(importance, granularity, delta, sparsity):
    pattern = TileWise(granularity=granularity, element_overlay=delta, **SOURCES)
    assert_prunes(pattern, importance, sparsity, overlay_oracle(importance, sparsity, granularity, delta))


@few
@given(
    importance=st.integers(1, 9).flatmap(lambda rows: matrices(rows, 6)),
    granularity=st.sampled_from([1, 2, 4]),
    share=st.sampled_from([0.1, 0.5, 0.8, 1.0]),
    sparsity=fractions,
)
def test_tile_wise_with_apriori_tuning(importance, granularity, share, sparsity):
    pattern = TileWise(granularity=granularity, apriori_tuning=share, **SOURCES)
    assert_prunes(pattern, importance, sparsity, apriori_oracle(importance, sparsity, granularity, share))


@few
@given(importance=matrices(4, 8), side=st.sampled_from([1, 2, 4]), sparsity=fractions)
def test_uniform(importance, side, sparsity):
    for aggregate in ("l2", "rms"):  # one layer ranks the same by both
        pattern = Uniform(granularity=side, aggregate=aggregate)
        assert_prunes(pattern, importance, sparsity, uniform_oracle(importance, sparsity, side))


@few
@given(importance=matrices(6, 5), sparsity=fractions)
def test_channel(importance, sparsity):
    assert_prunes(Channel("outputs"), importance, sparsity, free_oracle(importance, sparsity, 1, 5))
    assert_prunes(Channel("inputs"), importance, sparsity, free_oracle(importance, sparsity, 6, 1))


@few
@given(importance=matrices(6, 16), sides=st.sampled_from([(2, 4), (3, 8), (1, 4)]), sparsity=st.floats(0.5, 0.99))
def test_block_2_4(importance, sides, sparsity):
    pattern = Block24(granularity=f"{sides[0]}x{sides[1]}")
    assert_prunes(pattern, importance, sparsity, block_2_4_oracle(importance, sparsity, *sides))


@few
@given(
    importance=st.integers(1, 9).flatmap(lambda rows: matrices(rows, 13)),
    granularity=st.sampled_from([2, 3, 16]),
    sparsity=st.floats(0.5, 0.99),
)
def test_tile_2_4(importance, granularity, sparsity):
    assert_prunes(Tile24(granularity), importance, sparsity, tile_2_4_oracle(importance, sparsity, granularity))


@few
@given(importance=matrices(8, 6), granularity=st.sampled_from([2, 4]), sparsity=fractions)
def test_shuffled_block_in_the_order_that_it_finds(importance, granularity, sparsity):
    pattern = ShuffledBlock(granularity=granularity)
    permutation = pattern.find_permutation(torch.tensor(importance).float(), sparsity)
    order = list(range(8)) if permutation is None else permutation.outputs.tolist()
    gone = free_oracle([importance[row] for row in order], sparsity, granularity, 1)
    assert_prunes(pattern, importance, sparsity, {(order[i], j) for i, j in gone})


@few
@given(importance=matrices(3, 24), window=st.sampled_from([(2, 4), (1, 4), (3, 8), (5, 12)]))
def test_n_m_in_the_order_that_it_finds(importance, window):
    n, m = window
    pattern = NM(n=n, m=m, permutation="search", permutation_rounds=3)
    matrix = torch.tensor(importance).float()
    permutation = pattern.find_permutation(matrix, 1 - n / m)
    order = list(range(24)) if permutation is None else permutation.inputs.tolist()
    gone = balanced_oracle([[row[column] for column in order] for row in importance], n, m, 1, 1)
    mask = pattern.mask(matrix, 1 - n / m)
    assert set(map(tuple, (~mask).nonzero().tolist())) == {(i, order[j]) for i, j in gone}
    pattern.check(mask, 1 - n / m, permutation)


@few
@given(importance=matrices(8, 6), first=st.sampled_from([2, 4, 6]), sparsity=fractions)
def test_grids_of_layers_that_are_ranked_together(importance, first, sparsity):
    """Blocks do not cross the cut, so the layers together lose what one layer would."""
    layers = [range(first), range(first, 8)]
    for pattern, block in (
        (ElementWise(), (1, 1)),
        (VectorWise(granularity=2), (2, 1)),
        (BlockWise(granularity="2x3"), (2, 3)),
        (Channel("outputs"), (1, 6)),
    ):
        assert_prunes_over_layers(pattern, importance, layers, sparsity, free_oracle(importance, sparsity, *block))


@few
@given(
    importance=matrices(9, 5),
    first=st.integers(1, 8),
    granularity=st.sampled_from([1, 2, 4]),
    sparsity=st.floats(0, 0.89),
)
def test_tile_wise_over_layers_that_are_ranked_together(importance, first, granularity, sparsity):
    """With both options, alone; tiles end with their layer."""
    layers = [range(first), range(first, 9)]
    given = importance, sparsity, granularity
    for pattern, gone in (
        (TileWise(granularity, **SOURCES), tile_wise_oracle(*given, layers)),
        (TileWise(granularity, element_overlay=0.1, **SOURCES), overlay_oracle(*given, 0.1, layers)),
        (TileWise(granularity, apriori_tuning=0.6, **SOURCES), apriori_oracle(*given, 0.6, layers)),
    ):
        assert_prunes_over_layers(pattern, importance, layers, sparsity, gone)
