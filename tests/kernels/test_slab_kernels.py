"""`ell_cuda`, `csr_cuda` and `n_m_cuda`: their lists in plain loops, their launches; on a GPU every launch against float64."""

from dataclasses import replace

import pytest
import torch
from drawn_masks import any_order, free, n_of_m, order, same_count
from in_layout import in_layout
from slab_walk import walked_product
from sparsefront_kernels import FORMATS, Problem
from sparsefront_kernels.common.dependent_launch import DEPENDENT_LAUNCH
from sparsefront_kernels.common.slab_launch import SPACE, SlabLaunch, SlabProblem, candidates, possible
from sparsefront_kernels.common.slab_product import in_units, launch_slab_product
from sparsefront_kernels.csr.cuda import pack_for_cuda as pack_csr
from sparsefront_kernels.ell.cuda import pack_for_cuda as pack_ell
from sparsefront_kernels.n_m.cuda import pack_for_cuda as pack_n_m

KERNELS = (
    "ell_cuda",
    "ell_cuda_feature_major",
    "csr_cuda",
    "csr_cuda_feature_major",
    "n_m_cuda",
    "n_m_cuda_feature_major",
)


def stored_ell(shape, block, count, dtype=torch.float32, device="cpu"):
    weight = torch.randn(shape, generator=torch.Generator().manual_seed(3)).to(dtype)
    mask = same_count(block, count)(*shape)
    return FORMATS["ell"].from_dense(weight.to(device), mask.to(device), block=block)


def stored_csr(shape, density, dtype=torch.float32, device="cpu"):
    """Rows keep from nothing to twice the density."""
    weight = torch.randn(shape, generator=torch.Generator().manual_seed(4)).to(dtype)
    mask = free(2 * density)(*shape) & (free(1.0)(*shape).cumsum(0) / shape[0] > torch.rand(shape[0], 1))
    return FORMATS["csr"].from_dense(weight.to(device), mask.to(device))


def stored_n_m(outputs, groups, n, m, dtype=torch.float32, device="cpu", permuted=False, density=1.0):
    """Some groups keep less than n where the density is below 1."""
    k, mask, parameters = groups * m, n_of_m(n, m, density), {}
    if permuted:
        mask, parameters = any_order(mask, inputs=True, seed=7), {"input_order": order(k, 7)}
    weight = torch.randn(outputs, k, generator=torch.Generator().manual_seed(5)).to(dtype)
    parameters = {name: value.to(device) for name, value in parameters.items()}
    return FORMATS["n_m"].from_dense(weight.to(device), mask(outputs, k).to(device), n=n, m=m, **parameters)


def stored_of(family, block, dtype, device):
    """A weight whose outputs and inputs fill neither blocks nor slabs; of the n:m patterns another one for each block."""
    k = {1: 1000, 2: 256, 4: 520}[block]
    if family == "ell":
        return stored_ell((128, k), block, k // block // 5, dtype, device)
    if family == "n_m":
        groups, n, m = {1: (250, 2, 4), 2: (8, 3, 32), 4: (74, 5, 7)}[block]
        return stored_n_m(130, groups, n, m, dtype, device, permuted=block != 1)
    return stored_csr((130, k), 0.2, dtype, device)


class TestLists:
    @pytest.mark.parametrize("block", [1, 2, 4])
    @pytest.mark.parametrize(("k", "count"), [(8, 1), (256, 9), (600, 30), (600, 0), (16, 4)])
    def test_the_walk_of_the_ell_kernel_gives_the_product(self, block, k, count):
        stored = stored_ell((24, k), block, min(count, k // block))
        x = torch.randn(k, 2, dtype=torch.float64)
        y = walked_product(pack_ell(stored).lists, x, n=24)
        torch.testing.assert_close(y, stored.to_dense().double() @ x)

    @pytest.mark.parametrize("permuted", [False, True])
    @pytest.mark.parametrize(
        ("n", "m", "groups"), [(2, 4, 64), (1, 4, 150), (3, 32, 20), (5, 7, 40), (64, 64, 5), (1, 1, 3)]
    )
    def test_the_walk_of_the_n_m_kernel_gives_the_product(self, permuted, n, m, groups):
        stored = stored_n_m(21, groups, n, m, permuted=permuted, density=0.8)
        x = torch.randn(groups * m, 2, dtype=torch.float64)
        y = walked_product(pack_n_m(stored).lists, x, n=21)
        torch.testing.assert_close(y, stored.to_dense().double() @ x)

    def test_groups_that_divide_a_slab_fill_whole_quads(self):
        """So that nothing is multiplied besides: 2:4, 1:4 and 3:32 keep 128, 64 and 24 inputs of every 256."""
        for n, m in ((2, 4), (1, 4), (3, 32)):
            stored = stored_n_m(8, 512 // m, n, m)
            assert pack_n_m(stored).lists.values.numel() == stored.values.numel()

    def test_an_output_reads_permuted_inputs_as_they_ascend(self):
        mask = torch.tensor([[True, False, False, True]])
        weight, by = torch.tensor([[1.0, 2.0, 3.0, 4.0]]), torch.tensor([3, 2, 0, 1])
        lists = pack_n_m(FORMATS["n_m"].from_dense(weight, mask, n=1, m=2, input_order=by)).lists
        assert (lists.places.int() // 256).tolist() == [[0, 3, 3, 3]]
        assert lists.values.flatten().tolist() == [1, 4, 0, 0]

    @pytest.mark.parametrize("density", [0.0, 0.02, 0.3, 0.5])
    @pytest.mark.parametrize("k", [5, 256, 257, 1000])
    def test_the_walk_of_the_csr_kernel_gives_the_product(self, density, k):
        stored = stored_csr((37, k), density)
        x = torch.randn(k, 3, dtype=torch.float64)
        y = walked_product(pack_csr(stored).lists, x, n=37)
        torch.testing.assert_close(y, stored.to_dense().double() @ x)

    def test_outputs_that_keep_most_come_first(self):
        mask = torch.zeros(3, 300, dtype=torch.bool)
        mask[0, :2] = mask[2, ::3] = True
        lists = pack_csr(FORMATS["csr"].from_dense(torch.randn(3, 300), mask)).lists
        assert lists.order.tolist() == [2, 0, 1]
        assert lists.pointers.tolist() == [[0, 22, 23, 23], [23, 27, 27, 27]]

    def test_lists_are_filled_up_at_an_input_of_their_own(self):
        """A weight of zero at an input that is not kept would make NaN of its infinity."""
        mask = torch.zeros(1, 300, dtype=torch.bool)
        mask[0, [7, 9, 299]] = True
        lists = pack_csr(FORMATS["csr"].from_dense(torch.ones(1, 300), mask)).lists
        assert (lists.places.int() // 256).tolist() == [[7, 9, 9, 9], [43, 43, 43, 43]]
        assert lists.values.flatten().tolist() == [1, 1, 0, 0, 1, 0, 0, 0]

    def test_inputs_high_in_a_slab_need_all_sixteen_bits(self):
        mask = torch.zeros(1, 256, dtype=torch.bool)
        mask[0, 255] = True
        lists = pack_csr(FORMATS["csr"].from_dense(torch.ones(1, 256), mask)).lists
        assert int(lists.places[0, 0]) & 0xFFFF == 255 * 256 + 15 * 16


class TestLaunches:
    @pytest.mark.parametrize("block", [1, 2, 4])
    @pytest.mark.parametrize(("m", "k", "n"), [(128, 128, 128), (1024, 1024, 1024), (16384, 1024, 1024), (1, 300, 8)])
    def test_candidates_are_few_and_possible(self, block, m, k, n):
        problem = SlabProblem(m, k, n // block, block, n * k // 10, 4, True)
        chosen = candidates(problem, 132)
        assert 1 < len(chosen) <= 16 and len(set(chosen)) == len(chosen)
        assert all(possible(problem, launch) for launch in chosen)
        assert {launch.dependent_launch for launch in chosen} == set(DEPENDENT_LAUNCH)

    def test_impossible_launches(self):
        problem = SlabProblem(128, 256, 64, 2, 1000, 4, True)
        for launch in (
            SlabLaunch(8, 8, 1),  # 16 outputs of a warp
            SlabLaunch(2, 8, 2),  # there is one slab
            SlabLaunch(2, 32, 1),
            SlabLaunch(3, 8, 1),
            SlabLaunch(2, 8, 1, "never"),
        ):
            assert not possible(problem, launch)

    def test_every_launch_of_the_space_is_possible_somewhere(self):
        assert all(possible(SlabProblem(128, 1024, 64, 1, 1000, 4, True), launch) for launch in SPACE)

    def test_units_are_whole_and_aligned(self):
        x = torch.zeros(10, 24)
        assert in_units(x) and in_units(x[:, 4:12]) and in_units(x.half())
        assert not in_units(x[:, 1:9]) and not in_units(x[:, :6]) and not in_units(x.t())


class TestEntries:
    def test_unsupported_problems(self):
        stored = stored_csr((8, 16), 0.3)
        for m, dtype, device, reason in (
            (1, torch.float64, "cpu", "takes float16, bfloat16 or float32, not torch.float64"),
            (65_535 * 64 + 1, torch.float32, "cuda", "takes up to 4194240 rows of X, not 4194241"),
            (1, torch.float16, "cpu", "needs a CUDA device, not cpu"),
        ):
            assert in_layout("csr_cuda").unsupported_reason(stored, Problem(m, 16, 8, dtype, device)) == reason

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
        lists, bias = pack_ell(stored).lists, torch.randn(280, device="cuda")
        for x in (torch.randn(1100, 328, device="cuda").to(dtype), torch.randn(77, 1100, device="cuda").to(dtype).t()):
            expected = stored.to_dense().double() @ x.double() + bias.double()[:, None]
            problem = SlabProblem(x.shape[1], 1100, 280 // block, block, len(lists.values), dtype.itemsize, True)
            for number, launch in enumerate(SPACE):
                chosen = replace(launch, dependent_launch=DEPENDENT_LAUNCH[number % 3])
                if not possible(problem, chosen):
                    continue
                first, second = (torch.full_like(expected, torch.nan, dtype=dtype) for _ in range(2))
                for y in (first, second):
                    launch_slab_product(
                        "ell_cuda",
                        x,
                        y,
                        values=lists.values,
                        places=lists.places,
                        pointers=lists.pointers,
                        order=lists.order,
                        bias=bias,
                        problem=problem,
                        launch=chosen,
                    )
                assert_close(first, expected)
                assert torch.equal(first, second), chosen
