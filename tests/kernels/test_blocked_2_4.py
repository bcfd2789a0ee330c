"""Blocks that are 2:4 sparse themselves: their format, their panels as the tensor cores read them, and on a GPU the products.

What holds for all kernels is in test_random_problems.py and test_ops.py.
"""

import pytest
import torch
from drawn_masks import n_of_m
from sparsefront_kernels import FORMATS
from sparsefront_kernels.cuda.wgmma_layout import halved_panels, is_halved, whole_panels

HALF = torch.float16


class TestPanels:
    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
    def test_panels_come_back(self, dtype):
        panels = torch.where(n_of_m(2, 4, 0.8)(320, 64), torch.randn(320, 64), 0.0).to(dtype).view(5, 64, 64)
        halved = halved_panels(panels)
        assert is_halved(halved) and halved.shape == (5, 2304) and halved.dtype == dtype
        assert torch.equal(whole_panels(halved), panels)

    def test_three_of_four_are_rejected(self):
        with pytest.raises(ValueError, match="output 0 keeps 4 weights in group 0, at most 2"):
            halved_panels(torch.ones(1, 64, 64, dtype=HALF))


class TestFormat:
    def test_a_kept_zero_keeps_its_block(self):
        mask = n_of_m(2, 4)(8, 16)
        stored = FORMATS["blocked_2_4"].from_dense(torch.zeros(8, 16), mask, block=[8, 8])
        assert stored.block_columns.tolist() == [0, 1]

    @pytest.mark.parametrize(
        ("block", "kept", "message"),
        [
            ((4, 6), 0.5, "the 6 inputs of a block must be a multiple of 4"),
            ((3, 4), 0.5, "3x4 do not divide"),
            ((4, 4), 1.0, "blocked_2_4: output 0 keeps 4 weights in group 0"),
        ],
    )
    def test_masks_without_the_structure(self, block, kept, message):
        mask = torch.ones(8, 12, dtype=torch.bool) if kept == 1.0 else n_of_m(2, 4)(8, 12)
        with pytest.raises(ValueError, match=message):
            FORMATS["blocked_2_4"].from_dense(torch.ones(8, 12), mask, block=block)
