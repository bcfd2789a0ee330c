"""Each pattern against an oracle of plain loops that knows the definition and none of the implementation.

Scores are small whole numbers, so that ties are everywhere; group scores are compared as exact fractions (the square of
l2/length), so that equal groups are equal.
"""

import math
from collections.abc import Callable
from fractions import Fraction
from functools import partial

import pytest
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


few = settings(max_examples=40, derandomize=True)
fractions, halves = st.floats(0, 0.99), st.floats(0.5, 0.99)
Oracle = Callable[[list[list[int]], float], set[tuple[int, int]]]


def free(height: int, width: int) -> Oracle:
    return partial(free_oracle, height=height, width=width)


def tiles(width: int, oracle: Callable = tile_wise_oracle, option: float | None = None, **settings: float) -> tuple:
    more = () if option is None else (option,)
    return TileWise(width, **SOURCES, **settings), lambda x, sparsity: oracle(x, sparsity, width, *more)


# rows at least and at most, columns, sparsities, and patterns with their oracles
AT_ANY_SPARSITY: dict[str, tuple[int, int, int, st.SearchStrategy[float], list[tuple[Pattern, Oracle]]]] = {
    "element_wise": (1, 6, 5, fractions, [(ElementWise(), free(1, 1))]),
    "vector_wise": (6, 6, 8, fractions, [(VectorWise(g), free(g, 1)) for g in (1, 2, 3, 6)]),
    "block_wise": (6, 6, 8, fractions, [(BlockWise(f"{h}x{w}"), free(h, w)) for h, w in ((2, 2), (3, 4), (1, 8), (6, 1))]),
    "channel": (6, 6, 5, fractions, [(Channel("outputs"), free(1, 5)), (Channel("inputs"), free(6, 1))]),
    "tile_wise": (1, 9, 6, fractions, [tiles(g) for g in (1, 2, 4, 16)]),
    "overlay": (
        1, 9, 6, st.floats(0, 0.79),
        [tiles(g, overlay_oracle, d, element_overlay=d) for g in (1, 2, 4) for d in (0.01, 0.05, 0.2)],
    ),
    "apriori": (
        1, 9, 6, fractions,
        [tiles(g, apriori_oracle, a, apriori_tuning=a) for g in (1, 2, 4) for a in (0.1, 0.5, 0.8, 1.0)],
    ),
    "uniform": (  # one layer ranks the same by both norms
        4, 4, 8, fractions,
        [(Uniform(g, aggregate=a), partial(uniform_oracle, side=g)) for g in (1, 2, 4) for a in ("l2", "rms")],
    ),
    "block_2_4": (
        6, 6, 16, halves,
        [(Block24(f"{h}x{w}"), partial(block_2_4_oracle, height=h, width=w)) for h, w in ((2, 4), (3, 8), (1, 4))],
    ),
    "tile_2_4": (1, 9, 13, halves, [(Tile24(g), partial(tile_2_4_oracle, width=g)) for g in (2, 3, 16)]),
}  # fmt: skip


@pytest.mark.parametrize("case", AT_ANY_SPARSITY.values(), ids=AT_ANY_SPARSITY)
@few
@given(data=st.data())
def test_mask_at_any_sparsity(case, data):
    least, most, columns, sparsities, patterns = case
    importance = data.draw(st.integers(least, most).flatmap(lambda rows: matrices(rows, columns)))
    pattern, oracle = data.draw(st.sampled_from(patterns))
    sparsity = data.draw(sparsities)
    assert_prunes(pattern, importance, sparsity, oracle(importance, sparsity))


# rows, columns, group, windows, and the pattern of a window
BALANCED = {
    "n_m": (3, 24, (1, 1), [(2, 4), (1, 4), (3, 8), (5, 6), (1, 2), (5, 12), (7, 24)], NM),
    "vectors": (6, 8, (3, 1), [(2, 4), (1, 4), (3, 8)], lambda n, m: VectorWise(3, distribution="balanced", m=m)),
    "blocks": (4, 16, (2, 2), [(2, 4), (1, 4), (3, 8)], lambda n, m: BlockWise(2, distribution="balanced", m=m)),
}


@pytest.mark.parametrize("case", BALANCED.values(), ids=BALANCED)
@few
@given(data=st.data())
def test_windows_of_groups(case, data):
    rows, columns, group, windows, make = case
    importance, (n, m) = data.draw(matrices(rows, columns)), data.draw(st.sampled_from(windows))
    assert_prunes(make(n, m), importance, 1 - n / m, balanced_oracle(importance, n, m, *group))


@few
@given(importance=matrices(8, 6), granularity=st.sampled_from([2, 4]), sparsity=fractions)
def test_shuffled_blocks_in_their_order(importance, granularity, sparsity):
    pattern = ShuffledBlock(granularity=granularity)
    permutation = pattern.find_permutation(torch.tensor(importance).float(), sparsity)
    order = list(range(8)) if permutation is None else permutation.outputs.tolist()
    gone = free_oracle([importance[row] for row in order], sparsity, granularity, 1)
    assert_prunes(pattern, importance, sparsity, {(order[i], j) for i, j in gone})


@few
@given(importance=matrices(3, 24), window=st.sampled_from([(2, 4), (1, 4), (3, 8), (5, 12)]))
def test_windows_in_their_order(importance, window):
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
def test_grids_of_several_layers(importance, first, sparsity):
    """Blocks do not cross the cut, so the layers together lose what one layer would."""
    layers = [range(first), range(first, 8)]
    blocks = {ElementWise(): (1, 1), VectorWise(2): (2, 1), BlockWise("2x3"): (2, 3), Channel("outputs"): (1, 6)}
    for pattern, block in blocks.items():
        assert_prunes_over_layers(pattern, importance, layers, sparsity, free_oracle(importance, sparsity, *block))
