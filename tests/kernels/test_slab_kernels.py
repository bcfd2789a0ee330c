"""`ell_sm90`, `csr_sm90` and `n_m_sm90`: what they do not support; on a GPU every launch against float64."""

from dataclasses import replace

import pytest
import torch
from in_layout import in_layout
from slab_weights import stored_csr, stored_ell, stored_of
from sparsefront_kernels import Problem
from sparsefront_kernels.common.launch import DEPENDENT_LAUNCH
from sparsefront_kernels.common.slab_launch import SPACE, SlabProblem, possible
from sparsefront_kernels.common.slab_product import launch_slab_product
from sparsefront_kernels.ell.cuda import pack_for_sm90 as pack_ell

KERNELS = (
    "ell_sm90",
    "ell_sm90_feature_major",
    "csr_sm90",
    "csr_sm90_feature_major",
    "n_m_sm90",
    "n_m_sm90_feature_major",
)


class TestEntries:
    def test_unsupported_problems(self):
        stored = stored_csr((8, 16), 0.3)
        for m, dtype, device, reason in (
            (1, torch.float64, "cpu", "takes float16, bfloat16 or float32, not torch.float64"),
            (65_535 * 32 + 1, torch.float32, "cuda", "takes up to 2097120 rows of X, not 2097121"),
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
        lists, bias = pack_ell(stored).lists, torch.randn(280, device="cuda")
        for x in (torch.randn(1100, 328, device="cuda").to(dtype), torch.randn(77, 1100, device="cuda").to(dtype).t()):
            expected = stored.to_dense().double() @ x.double() + bias.double()[:, None]
            problem = SlabProblem(x.shape[1], 1100, 280 // block, block, lists.quads, dtype.itemsize, True)
            for number, launch in enumerate(SPACE):
                chosen = replace(launch, dependent_launch=DEPENDENT_LAUNCH[number % 3])
                if not possible(problem, chosen):
                    continue
                first, second = (torch.full_like(expected, torch.nan, dtype=dtype) for _ in range(2))
                for y in (first, second):
                    launch_slab_product(
                        "ell_sm90",
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
