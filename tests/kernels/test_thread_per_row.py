"""`ell_sm90`, `csr_sm90` and `n_m_sm90`: how their lists are filled up, and their launches."""

import torch
from drawn_masks import n_of_m
from sparsefront_kernels import FORMATS
from sparsefront_kernels.csr.sm90 import pack_for_sm90 as pack_csr
from sparsefront_kernels.cuda.launch import HOPPER
from sparsefront_kernels.cuda.thread_per_row import (
    ThreadPerRowLaunch,
    ThreadPerRowProblem,
    passes,
    possible,
    shared_bytes,
    vectors_of,
)
from sparsefront_kernels.n_m.sm90 import pack_for_sm90 as pack_n_m


class TestLists:
    def test_groups_that_fill_quads(self):
        """So that nothing is multiplied besides: 2:4, 1:4 and 3:32 keep 128, 64 and 24 inputs of every 256."""
        for n, m in ((2, 4), (1, 4), (3, 32)):
            mask = n_of_m(n, m)(8, 512)
            stored = FORMATS["n_m"].from_dense(torch.randn(8, 512), mask, n=n, m=m)
            assert pack_n_m(stored).quads * 4 == stored.values.numel()

    def test_permuted_inputs_are_read_ascending(self):
        mask = torch.tensor([[True, False, False, True]])
        weight, by = torch.tensor([[1.0, 2.0, 3.0, 4.0]]), torch.tensor([3, 2, 0, 1])
        lists = pack_n_m(FORMATS["n_m"].from_dense(weight, mask, n=1, m=2, input_order=by))
        assert lists.indices[: lists.quads].tolist() == [[0, 3, 3, 3]]
        assert lists.values[: lists.quads].flatten().tolist() == [1, 4, 0, 0]

    def test_lists_are_filled_up(self):
        """A weight of zero at an input that is not kept would make NaN of its infinity."""
        mask = torch.zeros(1, 300, dtype=torch.bool)
        mask[0, [7, 9, 299]] = True
        lists = pack_csr(FORMATS["csr"].from_dense(torch.ones(1, 300), mask))
        assert lists.indices.tolist() == [
            [7, 9, 299, 299],
            [0] * 4,
            [0] * 4,
        ]  # two quads beyond, read and not multiplied
        assert lists.values.flatten().tolist() == [1, 1, 1] + 9 * [0]


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
