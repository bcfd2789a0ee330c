"""`ell_sm90`, `csr_sm90` and `n_m_sm90`: their lists, walked over in plain loops as the blocks of a cluster do; their launches;
what they do not support; on a GPU every launch against float64.
"""

from dataclasses import replace

import pytest
import torch
from in_layout import in_layout
from sparsefront_kernels import FORMATS, Problem
from sparsefront_kernels.common.launch import DEPENDENT_LAUNCH
from sparsefront_kernels.common.thread_per_row import (
    BLOCK_SHARED_BYTES,
    MOST_CANDIDATES,
    SPACE,
    ThreadPerRowLaunch,
    ThreadPerRowProblem,
    candidates,
    launch_thread_per_row,
    passes,
    possible,
    problem_of,
    shared_bytes,
    vectors_of,
)
from sparsefront_kernels.csr.sm90 import pack_for_sm90 as pack_csr
from sparsefront_kernels.ell.sm90 import pack_for_sm90 as pack_ell
from sparsefront_kernels.n_m.sm90 import pack_for_sm90 as pack_n_m
from thread_per_row_walk import walked_product
from thread_per_row_weights import stored_csr, stored_ell, stored_n_m, stored_of

KERNELS = (
    "ell_sm90",
    "ell_sm90_feature_major",
    "csr_sm90",
    "csr_sm90_feature_major",
    "n_m_sm90",
    "n_m_sm90_feature_major",
)


class TestLists:
    @pytest.mark.parametrize("block", [1, 2, 4])
    @pytest.mark.parametrize(("k", "count"), [(8, 1), (256, 9), (600, 30), (600, 0), (16, 4)])
    def test_the_walk_of_the_ell_kernel_gives_the_product(self, block, k, count):
        stored = stored_ell((24, k), block, min(count, k // block))
        x = torch.randn(k, 2, dtype=torch.float64)
        y = walked_product(pack_ell(stored), x, n=24)
        torch.testing.assert_close(y, stored.to_dense().double() @ x)

    @pytest.mark.parametrize("permuted", [False, True])
    @pytest.mark.parametrize(
        ("n", "m", "groups"), [(2, 4, 64), (1, 4, 150), (3, 32, 20), (5, 7, 40), (64, 64, 5), (1, 1, 3)]
    )
    def test_the_walk_of_the_n_m_kernel_gives_the_product(self, permuted, n, m, groups):
        stored = stored_n_m(21, groups, n, m, permuted=permuted, density=0.8)
        x = torch.randn(groups * m, 2, dtype=torch.float64)
        y = walked_product(pack_n_m(stored), x, n=21)
        torch.testing.assert_close(y, stored.to_dense().double() @ x)

    def test_groups_that_divide_a_k_block_fill_whole_quads(self):
        """So that nothing is multiplied besides: 2:4, 1:4 and 3:32 keep 128, 64 and 24 inputs of every 256."""
        for n, m in ((2, 4), (1, 4), (3, 32)):
            stored = stored_n_m(8, 512 // m, n, m)
            assert pack_n_m(stored).quads * 4 == stored.values.numel()

    def test_an_output_reads_permuted_inputs_as_they_ascend(self):
        mask = torch.tensor([[True, False, False, True]])
        weight, by = torch.tensor([[1.0, 2.0, 3.0, 4.0]]), torch.tensor([3, 2, 0, 1])
        lists = pack_n_m(FORMATS["n_m"].from_dense(weight, mask, n=1, m=2, input_order=by))
        assert lists.indices[: lists.quads].tolist() == [[0, 3, 3, 3]]
        assert lists.values[: lists.quads].flatten().tolist() == [1, 4, 0, 0]

    @pytest.mark.parametrize("density", [0.0, 0.02, 0.3, 0.5])
    @pytest.mark.parametrize("k", [5, 256, 257, 1000])
    def test_the_walk_of_the_csr_kernel_gives_the_product(self, density, k):
        stored = stored_csr((37, k), density)
        x = torch.randn(k, 3, dtype=torch.float64)
        y = walked_product(pack_csr(stored), x, n=37)
        torch.testing.assert_close(y, stored.to_dense().double() @ x)

    def test_outputs_that_keep_most_come_first(self):
        mask = torch.zeros(3, 300, dtype=torch.bool)
        mask[0, :2] = mask[2, ::3] = True
        lists = pack_csr(FORMATS["csr"].from_dense(torch.randn(3, 300), mask))
        assert lists.order.tolist() == [2, 0, 1]
        assert lists.pointers.tolist() == [[0, 86, 100], [100, 104, 104], [104, 104, 104]]

    def test_lists_are_filled_up_at_an_input_of_their_own(self):
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

    @pytest.mark.parametrize("splits", [1, 2, 3, 5])
    @pytest.mark.parametrize("k_blocks", [1, 2, 5])
    @pytest.mark.parametrize("density", [0.003, 0.02, 0.3])
    def test_blocks_that_share_inputs_meet_each_entry_once(self, splits, k_blocks, density):
        """K-blocks that begin inside of a quad; several in one quad, and some of which a list keeps nothing."""
        stored = stored_csr((29, 1200), density)
        x = torch.randn(1200, 2, dtype=torch.float64)
        y = walked_product(pack_csr(stored), x, n=29, splits=splits, k_blocks=k_blocks)
        torch.testing.assert_close(y, stored.to_dense().double() @ x)

    def test_a_quad_of_two_blocks_meets_no_input_that_it_does_not_keep(self):
        """Of entries that another block multiplies, an infinity would make NaN."""
        mask = torch.zeros(1, 1024, dtype=torch.bool)
        mask[0, [3, 255, 256, 600, 1000]] = True
        x = torch.full((1024, 1), torch.inf, dtype=torch.float64)
        x[mask[0]] = 1
        lists = pack_csr(FORMATS["csr"].from_dense(torch.ones(1, 1024), mask))
        for splits, k_blocks in ((1, 1), (1, 3), (2, 2), (4, 1)):
            assert walked_product(lists, x, n=1, splits=splits, k_blocks=k_blocks).item() == 5

    @pytest.mark.parametrize("splits", [1, 3])
    def test_inputs_beyond_sixteen_bits(self, splits):
        """An index is its input mod 65536, and no pass holds two that differ by it."""
        mask = torch.zeros(2, 66_100, dtype=torch.bool)
        mask[:, [0, 65_535, 65_536, 66_099]] = True
        mask[1, 65_000:66_000:7] = True
        stored = FORMATS["csr"].from_dense(torch.randn(mask.shape), mask)
        lists = pack_csr(stored)
        assert (lists.indices[-3].int() & 0xFFFF).tolist() == [0, 65_535, 0, 563]
        x = torch.randn(66_100, 1, dtype=torch.float64)
        y = walked_product(lists, x, n=2, splits=splits, k_blocks=5)
        torch.testing.assert_close(y, stored.to_dense().double() @ x)


class TestLaunches:
    @pytest.mark.parametrize("block", [1, 2, 4])
    @pytest.mark.parametrize(("m", "k", "n"), [(128, 128, 128), (1024, 1024, 1024), (16384, 1024, 1024), (1, 300, 8)])
    def test_candidates_are_few_and_possible(self, block, m, k, n):
        problem = ThreadPerRowProblem(m, k, n // block, block, n * k // 10, 4, True)
        chosen = candidates(problem, 132)
        assert 1 < len(chosen) <= MOST_CANDIDATES and len(set(chosen)) == len(chosen)
        assert all(possible(problem, launch) for launch in chosen)
        assert {launch.dependent_launch for launch in chosen} == set(DEPENDENT_LAUNCH)

    def test_impossible_launches(self):
        problem = ThreadPerRowProblem(128, 700, 64, 2, 1000, 4, True)
        for launch in (
            ThreadPerRowLaunch(0, 8, 1, 1, 1),
            ThreadPerRowLaunch(2, 32, 1, 1, 1),
            ThreadPerRowLaunch(2, 8, 4, 1, 1),  # there are three k-blocks
            ThreadPerRowLaunch(2, 8, 2, 3, 1),  # and two of a block
            ThreadPerRowLaunch(2, 8, 9, 1, 1),
            ThreadPerRowLaunch(2, 8, 0, 1, 1),
            ThreadPerRowLaunch(16, 16, 1, 2, 1),  # sums of 2048 outputs
            ThreadPerRowLaunch(2, 8, 1, 1, 2),  # blocks of 2
            ThreadPerRowLaunch(2, 8, 1, 1, 1, "never"),
        ):
            assert not possible(problem, launch), launch

    @pytest.mark.parametrize("name", ["sets", "warps", "splits", "k_blocks", "lane_units"])
    def test_every_parameter_of_the_space_is_possible_somewhere(self, name):
        problems = [ThreadPerRowProblem(128, k, 64, 1, 1000, 4, True) for k in (256, 1024, 1792, 12288)]
        chosen = {getattr(launch, name) for launch in SPACE for problem in problems if possible(problem, launch)}
        assert chosen == {getattr(launch, name) for launch in SPACE}

    def test_shared_memory(self):
        problem = ThreadPerRowProblem(128, 1100, 128, 2, 1000, 2, True)  # 5 k_blocks, 64 rows
        for launch, times, size in (
            (ThreadPerRowLaunch(2, 4, 1, 5, 1), 1, 1100 * 128),
            (ThreadPerRowLaunch(2, 4, 1, 3, 1), 2, 768 * 128 + 4 * 8 * 2 * 64 * 4),
            (ThreadPerRowLaunch(1, 4, 2, 3, 1), 1, 768 * 128 + 4 * 4 * 2 * 64 * 4),
        ):
            assert (passes(problem, launch), shared_bytes(problem, launch)) == (times, size)
            assert possible(problem, launch) and size <= BLOCK_SHARED_BYTES

    def test_launches_that_do_the_same_are_not_both_timed(self):
        """Of nine k-blocks some block has two in a cluster of six or eight as in one of five; room for four saves no pass."""
        problem = ThreadPerRowProblem(128, 2304, 64, 1, 1000, 4, True)
        found = {(launch.splits, launch.k_blocks) for launch in SPACE if possible(problem, launch)}
        assert {splits for splits, _ in found} == {1, 2, 3, 5}
        assert {k_blocks for splits, k_blocks in found if splits == 1} == {1, 2, 3, 5}
        assert {k_blocks for splits, k_blocks in found if splits == 2} == {1, 2, 3, 5}

    def test_few_tiles_share_inputs(self):
        """Untuned, products with fewer blocks than multiprocessors are split along K, those with enough are not."""
        assert candidates(ThreadPerRowProblem(128, 2304, 256, 1, 256 * 2304 // 20, 4, True), 132)[0].splits > 1
        assert candidates(ThreadPerRowProblem(8192, 1024, 4096, 1, 4096 * 1024 // 8, 4, True), 132)[0].splits == 1

    def test_vectors_are_whole_and_aligned(self):
        x = torch.zeros(10, 24)
        assert vectors_of(x) == vectors_of(x[:, 4:12]) == vectors_of(x.half()) == 1
        assert vectors_of(x.t()) == vectors_of(x.half().t()) == vectors_of(x[:9, 4:12].t()) == 2
        for other in (x[:, 1:9], x[:, :6], x[:, 1:9].t(), x[:, :6].t(), x.half()[:, :20].t(), torch.zeros(10, 23).t()):
            assert vectors_of(other) == 0


class TestEntries:
    def test_unsupported_problems(self):
        stored = stored_csr((8, 16), 0.3)
        for m, dtype, device, reason in (
            (1, torch.float64, "cpu", "takes float16, bfloat16 or float32, not torch.float64"),
            (1, torch.float16, "cpu", "needs a CUDA device, not cpu"),
        ):
            assert in_layout("csr_sm90").unsupported_reason(stored, Problem(m, 16, 8, dtype, device)) == reason

    @pytest.mark.parametrize("name", KERNELS)
    def test_no_rows_need_no_gpu(self, name):
        kernel = in_layout(name)
        stored = stored_of(kernel.family, 1, torch.float32, "cpu")
        n, k = stored.shape
        x = torch.ones(Problem(0, k, n, torch.float32, "cpu", kernel.layout).x_shape)
        y = kernel.run(x, kernel.pack(stored))
        assert y.shape == ((0, n) if kernel.layout == "row_major" else (n, 0))


@pytest.mark.gpu
@pytest.mark.usefixtures("hopper")
class TestOnGPU:
    @pytest.mark.parametrize("name", KERNELS)
    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
    @pytest.mark.parametrize("m", [1, 31, 64, 128, 200, 515])
    def test_lengths_of_rows(self, name, dtype, m, activations, assert_close, poisoned_memory):
        kernel = in_layout(name)
        for block in (1, 2, 4):
            stored = stored_of(kernel.family, block, dtype, "cuda")
            n, k = stored.shape
            problem = Problem(m, k, n, dtype, "cuda", kernel.layout)
            for kind in ("plain", "inside_nan", "transposed"):
                x, bias = activations(problem, kind), torch.randn(n, device="cuda")
                with poisoned_memory():
                    y = kernel.run(x, kernel.pack(stored), bias)
                rows = x.double() if kernel.layout == "row_major" else x.double().t()
                expected = rows @ stored.to_dense().double().t() + bias.double()
                assert_close(y, expected if kernel.layout == "row_major" else expected.t())

    @pytest.mark.parametrize("block", [1, 2, 4])
    @pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
    def test_every_launch_of_the_space(self, block, dtype, assert_close):
        """Twice each: a race would show as a result that changes."""
        stored = stored_ell((280, 1100), block, 1100 // block // 6, dtype, "cuda")
        lists, bias = pack_ell(stored), torch.randn(280, device="cuda")
        for x in (torch.randn(1100, 328, device="cuda").to(dtype), torch.randn(77, 1100, device="cuda").to(dtype).t()):
            expected = stored.to_dense().double() @ x.double() + bias.double()[:, None]
            problem = problem_of(lists, x.shape[1], True)
            for number, launch in enumerate(SPACE):
                chosen = replace(launch, dependent_launch=DEPENDENT_LAUNCH[number % 3])
                if not possible(problem, chosen):
                    continue
                first, second = (torch.full_like(expected, torch.nan, dtype=dtype) for _ in range(2))
                for y in (first, second):
                    launch_thread_per_row(
                        "ell_sm90",
                        x,
                        y,
                        lists,
                        bias=bias,
                        problem=problem,
                        launch=chosen,
                    )
                assert_close(first, expected)
                assert torch.equal(first, second), chosen
