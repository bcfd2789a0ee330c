"""`ell_sm90`, `csr_sm90` and `n_m_sm90`: how their lists are filled up, and their launches."""

import torch
from sparsefront_kernels.cuda.launch import HOPPER
from sparsefront_kernels.cuda.thread_per_row import (
    ThreadPerRowLaunch,
    ThreadPerRowProblem,
    passes,
    possible,
    shared_bytes,
    vectors_of,
)


class TestLaunches:
    def test_shared_memory(self):
        problem = ThreadPerRowProblem(128, 1100, 128, 2, 1000, 2, True)  # 5 k_blocks, 64 rows
        for launch, times, size in (
            (ThreadPerRowLaunch(2, 4, 1, 5, 1), 1, 1100 * 128),
            (ThreadPerRowLaunch(2, 4, 1, 3, 1), 2, 768 * 128 + 4 * 8 * 2 * 64 * 4),
            (ThreadPerRowLaunch(1, 4, 2, 3, 1), 1, 768 * 128 + 4 * 4 * 2 * 64 * 4),
        ):
            assert (passes(problem, launch), shared_bytes(problem, launch)) == (times, size)
            assert possible(problem, launch) and size <= HOPPER.block_bytes

    def test_vectors_are_whole_and_aligned(self):
        x = torch.zeros(10, 24)
        assert vectors_of(x) == vectors_of(x[:, 4:12]) == vectors_of(x.half()) == 1
        assert vectors_of(x.t()) == vectors_of(x.half().t()) == vectors_of(x[:9, 4:12].t()) == 2
        for other in (x[:, 1:9], x[:, :6], x[:, 1:9].t(), x[:, :6].t(), x.half()[:, :20].t(), torch.zeros(10, 23).t()):
            assert vectors_of(other) == 0
