"""Launches: those that a GPU could not run are none of a kernel's space, and those that start early wait for what they read."""

from dataclasses import replace
from functools import partial

import drawn_masks
import pytest
import torch
from in_layout import in_layout
from sparsefront_kernels import FORMATS
from sparsefront_kernels.cuda import thread_per_output, thread_per_row
from sparsefront_kernels.cuda.thread_per_output import ThreadPerOutputLaunch, ThreadPerOutputProblem
from sparsefront_kernels.cuda.thread_per_row import ThreadPerRowLaunch, ThreadPerRowProblem
from sparsefront_kernels.gathered.indexed import IndexedLaunch
from sparsefront_kernels.gathered.simt import SimtLaunch
from sparsefront_kernels.gathered.sm90 import Sm90Launch
from sparsefront_kernels.gathered.small_m import SmallMLaunch
from sparsefront_kernels.n_m import mma

FEW_ROWS = partial(thread_per_output.possible, ThreadPerOutputProblem(1, 4096, 4096, 3, 32, 2, 5))
PER_ROW = partial(thread_per_row.possible, ThreadPerRowProblem(128, 700, 64, 2, 1000, 4, True))
FOUR, OF_32 = (
    mma.mma_problem(ThreadPerOutputProblem(16, 4096, 4096, *pattern)) for pattern in ((2, 4, 2, 2), (3, 32, 2, 5))
)
STAGED = ThreadPerOutputLaunch(4, 4, 1, 16, stages=2)
IMPOSSIBLE = {  # kernel -> (whether it is possible, launch), of which none is
    "gathered_sm90": [
        (lambda launch: launch.possible, Sm90Launch(*launch))
        for launch in (
            (256, 5, 4, 1),  # more shared memory than there is
            (256, 3, 4, 2),  # registers for one block only
            (128, 6, 4, 2),
            (128, 3, 4, 1),  # fewer stages than teams of producers
            (128, 3, 4, 2, 2),  # no registers left to add up with
            (64, 4, 4, 2, 8),  # partial sums would not fit
            (96, 4, 4, 1),
            (64, 4, 0, 1),
        )
    ],
    "gathered_simt": [
        (lambda launch, width=width: launch.possible(width), SimtLaunch(*launch))
        for width, launch in (
            (32, (16, 1, 16)),  # more shared memory than there is
            (128, (16, 2, 2)),  # no warp is left for a second k-slice
            (32, (12, 1, 2)),
            (32, (16, 3, 2)),
            (32, (16, 1, 1)),
            (32, (16, 1, 2, 9)),
        )
    ],
    "gathered_indexed": [
        (lambda launch, width=width: launch.possible(width), IndexedLaunch(*launch))
        for width, launch in ((8, (12,)), (8, (16, 9)), (128, (16,)))  # no room for two stages
    ],
    "gathered_small_m": [
        (lambda launch, m=m, width=width: launch.possible(m, width), SmallMLaunch(*launch))
        for m, width, launch in (
            (8, 64, ("lanes", 8, 1, 8, 4)),  # wider than the row tile
            (64, 128, ("lanes", 8, 1, 8, 4)),  # more sums than registers
            (8, 128, ("lanes", 8, 1, 2, 4)),  # fewer threads than outputs
            (8, 128, ("lanes", 3, 1, 8, 4)),
            (8, 128, ("lanes", 8, 9, 8, 4)),
            (8, 128, ("lanes", 8, 1, 8, 1)),
            (8, 128, ("lanes", 8, 1, 8, 8)),  # more shared memory than there is
            (8, 128, ("lanes", 8, 1, 8, 4, 0, "never")),
            (8, 128, ("shared", 1, 1, 4, 4, 4)),  # eight warps multiply
            (8, 128, ("shared", 1, 1, 8, 4, 0)),
            (8, 128, ("shared", 1, 1, 8, 8, 8)),
            (8, 128, ("nobody", 1, 1, 8, 2, 2)),
        )
    ],
    "n_m_small_m": [
        (FEW_ROWS, ThreadPerOutputLaunch(*launch))
        for launch in ((2, 8, 1, 1), (1, 8, 9, 1), (1, 8, 1, 3), (1, 8, 1, 1, "never"))  # the first has 16 warps
    ],
    "n_m_mma": [
        (partial(mma.possible, FOUR), replace(STAGED, stages=0)),  # weights need a ring
        (partial(mma.possible, replace(FOUR, m=32)), replace(STAGED, rows=32)),  # 16 warps with 32 sums a lane
        (partial(mma.possible, OF_32), replace(STAGED, shares=2, rows=8)),  # left operands have 16 rows
    ],
    "n_m_sm90": [
        (PER_ROW, ThreadPerRowLaunch(*launch))
        for launch in (
            (0, 8, 1, 1, 1),
            (2, 32, 1, 1, 1),
            (2, 8, 4, 1, 1),  # there are three k-blocks
            (2, 8, 2, 3, 1),  # and two of a block
            (2, 8, 9, 1, 1),
            (2, 8, 0, 1, 1),
            (16, 16, 1, 2, 1),  # sums of 2048 outputs
            (2, 8, 1, 1, 2),  # blocks of 2
            (2, 8, 1, 1, 1, "never"),
        )
    ],
}


@pytest.mark.parametrize("kernel", IMPOSSIBLE)
def test_impossible_launches(kernel):
    assert [launch for possible, launch in IMPOSSIBLE[kernel] if possible(launch)] == []
    assert mma.possible(FOUR, STAGED)


@pytest.mark.gpu
@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize(
    "label", ["gathered_small_m_row_major", "gathered_small_m_feature_major", "n_m_small_m", "n_m_mma"]
)
def test_products_wait_for_the_one_before(label):
    """Each reads what the one before wrote; started early, it must not read too soon."""
    kernel, drawn = (
        in_layout(label),
        drawn_masks.n_of_m(2, 4) if label.startswith("n_m") else drawn_masks.tile_wise(128, 0.2, dropped=0.0),
    )
    parameters = {"n": 2, "m": 4} if label.startswith("n_m") else {"tile": 128}
    weights = [torch.randn(2048, 2048, device="cuda").half() / 25 for _ in range(6)]
    stored = [FORMATS[kernel.family].from_dense(weight, drawn(2048, 2048).cuda(), **parameters) for weight in weights]
    packed = [kernel.pack(one) for one in stored]
    for m in (1, 3, 24) * 5:
        x = torch.randn(m, 2048, device="cuda").half()
        expected, y = x.double(), x.t().contiguous() if kernel.layout == "feature_major" else x
        for one in stored:
            expected = (expected @ one.to_dense().double().t()).half().double()
        for one in packed:
            y = kernel.run(y, one)
        y = y.t() if kernel.layout == "feature_major" else y
        assert torch.linalg.norm(y.double() - expected) <= 2e-3 * torch.linalg.norm(expected)
