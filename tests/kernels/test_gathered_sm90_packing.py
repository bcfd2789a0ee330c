"""The weight laid out for the Hopper kernel: multiplied as the kernel does, it is the same weight."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sparsefront_kernels import FORMATS
from sparsefront_kernels.gathered.sm90_packing import pack_for_sm90


def stored_weight(n, k, tile, density, seed, *, dropped=0.0):
    """A gathered weight whose tiles keep uneven numbers of inputs; a share `dropped` of the outputs keeps none."""
    generator = torch.Generator().manual_seed(seed)
    survivors = (torch.rand(n, generator=generator) >= dropped).nonzero().flatten()
    tiles = -(-len(survivors) // tile)
    share = 2 * density * torch.rand(tiles, 1, generator=generator)
    mask = torch.zeros(n, k, dtype=torch.bool)
    mask[survivors] = (torch.rand(tiles, k, generator=generator) < share).repeat_interleave(tile, 0)[: len(survivors)]
    weight = torch.randn(n, k, generator=generator, dtype=torch.float64)
    return FORMATS["gathered"].from_dense(weight, mask, tile=tile, drop_empty_outputs=dropped > 0)


def product_from_packed(packed, x):
    """Y [N, M] in float64, walking the packed weight in plain loops; each output must be written once."""
    y = torch.full((packed.n, x.shape[1]), torch.nan, dtype=torch.float64)
    for (first, count), outputs in zip(packed.cta_tiles.tolist(), packed.outputs, strict=True):
        sums = torch.zeros(128, x.shape[1], dtype=torch.float64)
        for k_block in packed.k_blocks[first : first + count]:
            uses, next_panel = int(k_block[64]), k_block[65:67].tolist()
            for mma_tile in range(4):
                inputs = k_block[mma_tile * 16 : mma_tile * 16 + 16]
                rows = torch.stack([x[i] if i >= 0 else torch.zeros_like(x[0]) for i in inputs.tolist()])
                for half in range(2):
                    if uses >> (4 * half + mma_tile) & 1:
                        panel = unswizzled(packed.panels[next_panel[half]])
                        sums[half * 64 : half * 64 + 64] += panel.t() @ rows
                        next_panel[half] += 1
        for place, output in enumerate(outputs.tolist()):
            if output >= 0:
                assert y[output].isnan().all()
                y[output] = sums[place]
    return y


def unswizzled(panel):
    """[16, 64] with every chunk of eight outputs back at its place."""
    chunks = panel.view(16, 8, 8)
    return torch.stack([torch.cat([chunks[row, chunk ^ (row % 8)] for chunk in range(8)]) for row in range(16)])


@pytest.mark.parametrize(
    ("n", "k", "tile", "density", "dropped"),
    [
        (256, 200, 128, 0.5, 0.3),
        (257, 83, 64, 0.4, 0.0),
        (300, 150, 32, 0.3, 0.3),
        (129, 64, 16, 0.2, 0.0),
        (500, 90, 256, 0.5, 0.0),
        (320, 70, 192, 0.5, 0.0),
        (70, 33, 4, 0.1, 0.5),
        (1, 5, 128, 0.5, 0.0),
        (10, 5, 64, 0.0, 0.5),
        (130, 64, 64, 0.5, 1.0),
    ],
)
def test_tables_hold_the_weight(n, k, tile, density, dropped):
    stored = stored_weight(n, k, tile, density, seed=0, dropped=dropped)
    x = torch.randn(k, 3, dtype=torch.float64)
    torch.testing.assert_close(product_from_packed(pack_for_sm90(stored), x), stored.to_dense() @ x)


@settings(max_examples=15)
@given(
    n=st.integers(1, 300),
    k=st.integers(1, 100),
    tile=st.sampled_from([2, 16, 32, 64, 128]),
    density=st.floats(0, 0.5),
    seed=st.integers(0, 1000),
)
def test_tables_hold_any_weight(n, k, tile, density, seed):
    stored = stored_weight(n, k, tile, density, seed, dropped=0.2)
    x = torch.randn(k, 1, dtype=torch.float64)
    torch.testing.assert_close(product_from_packed(pack_for_sm90(stored), x), stored.to_dense() @ x)


def test_outputs_in_any_order():
    """Tiles may be formed from permuted outputs; Y comes out in the weight's own order."""
    order = torch.randperm(192)
    mask = torch.zeros(192, 40, dtype=torch.bool)
    mask[order] = (torch.rand(3, 40) < 0.5).repeat_interleave(64, 0)
    weight = torch.randn(192, 40, dtype=torch.float64)
    stored = FORMATS["gathered"].from_dense(weight, mask, tile=64, output_order=order)
    x = torch.randn(40, 2, dtype=torch.float64)
    torch.testing.assert_close(product_from_packed(pack_for_sm90(stored), x), (weight * mask) @ x)


def test_an_input_that_both_halves_keep_is_loaded_once():
    mask = torch.zeros(128, 96, dtype=torch.bool)
    mask[:64, :48] = mask[64:, 32:80] = True  # 32 for half 0 alone, 16 for both, 32 for half 1 alone
    stored = FORMATS["gathered"].from_dense(torch.randn(128, 96), mask, tile=64)
    packed = pack_for_sm90(stored)
    assert (packed.k_blocks[:, :64] >= 0).sum() == 80
    assert len(packed.panels) == (48 + 48) // 16
    assert [bin(uses).count("1") for uses in packed.k_blocks[:, 64].tolist()] == [5, 1]


@pytest.mark.parametrize("tile", [16, 32, 64])
def test_tiles_that_share_inputs_are_put_together(tile):
    lists = torch.rand(2, 96).argsort(dim=1) < 16  # 16 inputs each
    mask = lists.repeat(128 // tile, 1).repeat_interleave(tile, 0)  # neighbours differ
    packed = pack_for_sm90(FORMATS["gathered"].from_dense(torch.randn(256, 96), mask, tile=tile))
    assert len(packed.cta_tiles) == 2 and len(packed.k_blocks) == 2
    assert (packed.k_blocks[:, :64] >= 0).sum() == 32  # each of the two lists once
    assert len(packed.panels) == 4


def test_longest_pairs_come_first():
    packed = pack_for_sm90(stored_weight(640, 300, 128, 0.4, seed=3))
    lengths = packed.cta_tiles[:, 1].tolist()
    assert lengths == sorted(lengths, reverse=True)
    assert len(set(lengths)) > 1 and packed.k_blocks_of_each == 0


def test_equal_pairs_are_known_as_such():
    mask = torch.zeros(256, 128, dtype=torch.bool)
    mask[:, ::2] = True
    packed = pack_for_sm90(FORMATS["gathered"].from_dense(torch.randn(256, 128), mask, tile=128))
    assert packed.k_blocks_of_each == 1
    assert packed.cta_tiles.tolist() == [[0, 1], [1, 1]]


def test_pairs_that_differ_by_one_step_begin_where_the_kernel_expects_them():
    mask = torch.zeros(384, 256, dtype=torch.bool)
    mask[:128, :60] = mask[128:256, :100] = mask[256:, :128] = True  # 1, 2 and 2 k-blocks
    packed = pack_for_sm90(FORMATS["gathered"].from_dense(torch.randn(384, 256), mask, tile=128))
    each, longer = packed.k_blocks_of_each, len(packed.k_blocks) - packed.k_blocks_of_each * len(packed.cta_tiles)
    assert (each, longer) == (1, 2)
    assert packed.cta_tiles.tolist() == [[i * each + min(i, longer), each + (i < longer)] for i in range(3)]


@pytest.mark.parametrize("tile", [24, 96, 200])
def test_tiles_that_do_not_fit_half_tiles_are_rejected(tile):
    stored = FORMATS["gathered"].from_dense(torch.randn(200, 8), torch.ones(200, 8, dtype=torch.bool), tile=tile)
    with pytest.raises(ValueError, match=f"not tiles of {tile} outputs"):
        pack_for_sm90(stored)
