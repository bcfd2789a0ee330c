"""Blocks that are 2:4 sparse themselves: their format, their panels as the tensor cores read them, and on a GPU the products.

What holds for all kernels is in test_random_problems.py and test_ops.py.
"""

import pytest
import torch
from drawn_masks import n_of_m
from sparsefront_kernels import FORMATS


@pytest.mark.parametrize(
    ("block", "kept", "message"),
    [
        ((4, 6), 0.5, "the 6 inputs of a block must be a multiple of 4"),
        ((3, 4), 0.5, "3x4 do not divide"),
        ((4, 4), 1.0, "blocked_2_4: output 0 keeps 4 weights in group 0"),
    ],
)
def test_masks_without_the_structure(block, kept, message):
    mask = torch.ones(8, 12, dtype=torch.bool) if kept == 1.0 else n_of_m(2, 4)(8, 12)
    with pytest.raises(ValueError, match=message):
        FORMATS["blocked_2_4"].from_dense(torch.ones(8, 12), mask, block=block)
