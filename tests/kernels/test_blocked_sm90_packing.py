"""The blocked weight laid out for the Hopper kernel: walked as the kernel does, it is the same weight."""

from itertools import pairwise

import drawn_masks
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sparsefront_kernels import FORMATS
from sparsefront_kernels.blocked.gathered_tiles import gathered_tiles
from sparsefront_kernels.blocked.sm90 import (
    CLUSTERS,
    BlockedLaunch,
    block_unsupported_reason,
    box_of,
    cut_tensors,
    dense_weight,
    pack_for_blocked_sm90,
    work_tensors,
)

CPU = torch.device("cpu")
LAUNCHES = [
    *(BlockedLaunch(cluster) for cluster in CLUSTERS),
    *(BlockedLaunch(c, cut=w) for c, w in ((1, 64), (2, 192))),
]


def stored_weight(block, rows, columns, density=0.4, seed=0):
    n, k = rows * block[0], columns * block[1]
    mask = drawn_masks.blocks(*block, density, seed)(n, k)
    weight = torch.randn(n, k, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return FORMATS["blocked"].from_dense(weight, mask, block=block)


def unswizzled(panel):
    """[64, 64] with every chunk of eight inputs back at its place."""
    chunks = panel.view(64, 8, 8)
    return torch.stack([torch.cat([chunks[row, chunk ^ (row % 8)] for chunk in range(8)]) for row in range(64)])


def product_from_packed(packed, x, launch, clusters=3):
    """Y [M, N] in float64, as the blocks of the grid compute it; each element must be written once."""
    cluster, m, boxes = launch.cluster, len(x), 64 // packed.box
    outside = torch.cat([x, x.new_zeros(m, 64)], dim=1)  # what lies past K comes as zeros
    y = torch.zeros(m, packed.n, dtype=torch.float64)
    written = torch.zeros(m, packed.n, dtype=torch.int64)
    cut, of_pieces, units = [], {}, None
    if launch.cut:
        found = cut_tensors(packed.lengths, m, launch, 2.0, False, clusters, CPU)
        work, begins, firsts, units, cut = found.work, found.begins, found.firsts, found.units, found.cut.tolist()
        of_pieces = {unit: None for unit in range(found.units_in_all)}
    else:
        work, begins, firsts = work_tensors(packed.lengths, m, launch, lambda cluster: clusters, CPU)
    assert torch.equal(firsts, work[begins[:-1].long()]) and (begins.diff() > 0).all()
    units = [-1] * len(work) if units is None else units.tolist()

    def store(cta_tile, rows, sums):
        for half, output in enumerate(packed.outputs[cta_tile].tolist()):
            if output >= 0 and rows.stop > rows.start:
                written[rows, output : output + 64] += 1
                y[rows, output : output + 64] += sums[half]

    for begin, end in pairwise(begins.tolist()):
        tiles = list(zip(work[begin:end].tolist(), units[begin:end], strict=True))
        counts = [count for (_, _, count, _), _ in tiles]
        assert counts == sorted(counts, key=lambda count: count == 0), "tiles without k-blocks come last"
        for rank in range(cluster):
            for (cta_tile, first, count, place), unit in tiles:
                width = 64 * ((place >> 28) + 1)
                column = (place & 0xFFFFFFF) * cluster + rank * width
                rows = slice(column, max(column, min(column + width, m)))
                sums = torch.zeros(2, rows.stop - column, 64, dtype=torch.float64)
                for k_block in packed.k_blocks[first : first + count].tolist():
                    inputs = [start + i for start in k_block[:boxes] for i in range(packed.box)]
                    uses, panel = k_block[boxes] & 3, k_block[boxes] >> 2
                    for half in range(2):
                        if uses >> half & 1:
                            sums[half] += outside[rows, inputs] @ unswizzled(packed.panels[panel]).t()
                            panel += 1
                if unit < 0:
                    store(cta_tile, rows, sums)
                    continue
                for group in range(width // 64):
                    assert of_pieces.pop(unit + rank * width // 64 + group, 0) is None, "nobody else leaves sums there"
                    of_pieces[unit + rank * width // 64 + group] = sums[:, 64 * group : 64 * group + 64]
    for cta_tile, column, unit, pieces in cut:
        for group in range(cluster * launch.cut // 64):
            begin = min(m, column + 64 * group)
            own = [of_pieces.pop(unit + piece * cluster * launch.cut // 64 + group) for piece in range(pieces)]
            store(cta_tile, slice(begin, min(begin + 64, m)), sum(own))
    assert (written == 1).all() and not of_pieces
    return y


@pytest.mark.parametrize("launch", LAUNCHES, ids=str)
@pytest.mark.parametrize(
    ("block", "rows", "columns", "density"),
    [
        ((128, 128), 3, 4, 0.5),
        ((64, 64), 5, 6, 0.4),  # an odd number of halves
        ((64, 64), 4, 3, 1.0),
        ((64, 64), 3, 3, 0.0),
        ((192, 64), 3, 4, 0.5),
        ((128, 16), 2, 13, 0.4),
        ((64, 16), 5, 9, 0.3),
        ((64, 96), 4, 3, 0.5),  # boxes of 32
        ((256, 192), 2, 2, 0.7),
    ],
)
def test_the_walk_of_the_kernel_gives_the_product(block, rows, columns, density, launch):
    stored = stored_weight(block, rows, columns, density)
    packed = pack_for_blocked_sm90(stored)
    assert packed.box == box_of(block[1]) and packed.k_blocks.shape[1] == 2 * 64 // packed.box
    x = torch.randn(150, stored.shape[1], dtype=torch.float64)
    torch.testing.assert_close(product_from_packed(packed, x, launch), x @ stored.to_dense().t())


@settings(max_examples=15)
@given(
    block=st.sampled_from([(64, 16), (64, 32), (64, 64), (128, 16), (128, 64), (192, 80)]),
    rows=st.integers(1, 6),
    columns=st.integers(1, 7),
    density=st.floats(0, 1),
    seed=st.integers(0, 1000),
    m=st.integers(1, 700),
    launch=st.sampled_from(LAUNCHES),
    clusters=st.integers(1, 9),
)
def test_any_weight_and_any_number_of_rows(block, rows, columns, density, seed, m, launch, clusters):
    stored = stored_weight(block, rows, columns, density, seed)
    x = torch.randn(m, stored.shape[1], dtype=torch.float64)
    y = product_from_packed(pack_for_blocked_sm90(stored), x, launch, clusters)
    torch.testing.assert_close(y, x @ stored.to_dense().t())


@pytest.mark.parametrize("block", [(64, 16), (64, 32), (64, 64), (128, 64), (192, 80)])
def test_the_weight_is_rebuilt_from_what_the_kernel_reads(block):
    stored = stored_weight(block, 5, 6)
    assert torch.equal(dense_weight(pack_for_blocked_sm90(stored)), stored.to_dense())


def test_rows_that_share_blocks_are_paired():
    """Two kinds of rows in turns: paired by kind, a block that both halves keep is loaded once."""
    kinds = torch.rand(2, 8) < 0.5
    kinds[1] = ~kinds[0]
    mask = kinds.repeat(3, 1).repeat_interleave(64, 0).repeat_interleave(64, 1)
    packed = pack_for_blocked_sm90(FORMATS["blocked"].from_dense(torch.randn(384, 512), mask, block=(64, 64)))
    assert set((packed.k_blocks[:, 1] & 3).tolist()) <= {1, 2, 3}
    assert sum(packed.lengths) < 3 * 8, "the union of two kinds would be everything"


def test_longest_lists_come_first_and_pruned_tiles_last():
    stored = stored_weight((128, 128), 9, 16, density=0.3)
    mask = stored.to_dense() != 0
    mask[256:384] = False
    packed = pack_for_blocked_sm90(FORMATS["blocked"].from_dense(torch.randn(stored.shape), mask, block=(128, 128)))
    assert list(packed.lengths) == sorted(packed.lengths, reverse=True) and packed.lengths[-1] == 0
    assert packed.outputs[-1].tolist() == [256, 320]


@pytest.mark.parametrize("block", [(32, 64), (96, 64), (64, 8), (64, 24)])
def test_blocks_that_no_half_can_be_cut_from(block):
    assert "takes blocks of a multiple of 64 outputs" in block_unsupported_reason(block)
    with pytest.raises(ValueError, match="blocked: takes blocks of a multiple of 64 outputs"):
        pack_for_blocked_sm90(stored_weight(block, 2, 2))


@pytest.mark.parametrize("block", [(4, 64), (32, 32), (16, 16), (3, 5)])
@pytest.mark.parametrize("density", [0.0, 0.4, 1.0])
def test_gathered_tiles_of_blocks_are_the_same_weight(block, density):
    stored = stored_weight(block, 6, 7, density)
    tiles = gathered_tiles(stored)
    assert tiles.tile == block[0] and torch.equal(tiles.to_dense(), stored.to_dense())
