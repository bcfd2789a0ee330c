"""Tiles that are 2:4 sparse inside: their format, the walk of the kernel over what is packed, and on a GPU the products.

What holds for all kernels is in test_random_problems.py and test_ops.py.
"""

import pytest
import torch
from drawn_masks import free, halved_tiles
from hypothesis import given, settings
from hypothesis import strategies as st
from sparsefront_kernels import FORMATS
from sparsefront_kernels.gathered_2_4.sm90 import pack_for_sm90

HALF = torch.float16


def stored_weight(tile, n, k, density=0.5, seed=0, dropped=0.3, dtype=HALF, device="cpu"):
    mask = halved_tiles(tile, density, seed, dropped)(n, k)
    weight = torch.randn(n, k, generator=torch.Generator().manual_seed(seed)).to(dtype)
    return FORMATS["gathered_2_4"].from_dense(weight.to(device), mask.to(device), tile=tile)


class TestFormat:
    def test_the_example_of_the_class(self):
        mask = torch.zeros(2, 6, dtype=torch.bool)
        mask[0, :2] = mask[1, 3:5] = True
        stored = FORMATS["gathered_2_4"].from_dense(torch.arange(1.0, 13).view(2, 6), mask, tile=2)
        assert stored.inputs.tolist() == [[0, 1, 3, 4]] and stored.values.tolist() == [[[1, 2], [10, 11]]]
        assert stored.metadata.tolist() == [[0 + 4 * 1 + 16 * 2 + 64 * 3]]

    @settings(max_examples=20)
    @given(
        tile=st.integers(1, 9),
        n=st.integers(1, 20),
        k=st.integers(1, 30),
        density=st.floats(0, 1),
        seed=st.integers(0, 99),
    )
    def test_any_mask_can_be_held(self, tile, n, k, density, seed):
        """As inputs that a layer before lost leave one: without structure."""
        mask = free(density, seed)(n, k)
        stored = FORMATS["gathered_2_4"].from_dense(torch.ones(n, k), mask, tile=tile)
        assert torch.equal(stored.to_dense(), mask.float())


class TestPacking:
    def test_narrow_tiles_are_unsupported(self):
        with pytest.raises(ValueError, match="takes tiles of a multiple of 64 outputs, not of 32"):
            pack_for_sm90(stored_weight(32, 100, 50))
