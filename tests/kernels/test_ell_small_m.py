"""The ELL kernel for few rows: its packed weight in plain loops, what it supports; on a GPU every M against float64."""

import pytest
import torch
from drawn_masks import same_count
from sparsefront_kernels import FORMATS, Problem, entry
from sparsefront_kernels.common.thread_per_output import candidates, possible
from sparsefront_kernels.ell.small_m import KERNEL, pack_for_small_m, problem_of
from thread_per_output_walk import walked_product


def stored_ell(shape, block, count, dtype=torch.float16, device="cpu"):
    weight = torch.randn(shape, generator=torch.Generator().manual_seed(3)).to(dtype)
    mask = same_count(block, count)(*shape)
    return FORMATS["ell"].from_dense(weight.to(device), mask.to(device), block=block)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("block", [1, 2, 4])
@pytest.mark.parametrize("count", [0, 1, 13, 20])
def test_the_walk_of_the_kernel_gives_the_product(block, count, dtype):
    stored = stored_ell((40, 80), block, count, dtype)
    packed = pack_for_small_m(stored)
    x = torch.randn(2, 80, dtype=torch.float64)
    y = walked_product(packed.values, packed.columns, x, n=40, bits=16, block=block, kept=packed.kept, group_size=80)
    torch.testing.assert_close(y, x @ stored.to_dense().double().t())


@pytest.mark.parametrize("m", [1, 7, 16])
def test_candidates_are_possible(m):
    packed = pack_for_small_m(stored_ell((64, 4096), 1, 400))
    problem = problem_of(packed, m)
    chosen = candidates(problem, 132)
    assert len(chosen) > 1 and all(possible(problem, launch) for launch in chosen)


def test_unsupported_problems():
    for m, k, reason in (
        (17, 64, "takes up to 16 rows of X, not 17"),
        (1, 64, "needs a CUDA device, not cpu"),
        (1, 60_000, "brings all inputs into shared memory, and 60000 do not fit"),
    ):
        stored = stored_ell((2, k), 1, 3)
        assert entry(KERNEL).unsupported_reason(stored, Problem(m, k, 2, torch.float16, "cpu")) == reason


@pytest.mark.gpu
@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize("m", range(1, 17))
def test_every_m(m, activations, assert_close, poisoned_memory):
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        for block in (1, 2, 4):
            stored = stored_ell((132, 1000), block, 37, dtype, "cuda")
            problem = Problem(m, 1000, 132, dtype, "cuda")
            x, bias = (
                activations(problem, ("plain", "inside_nan", "transposed")[m % 3]),
                torch.randn(132, device="cuda"),
            )
            kernel = entry(KERNEL)
            with poisoned_memory():
                y = kernel.run(x, kernel.pack(stored), bias)
            assert_close(y, x.double() @ stored.to_dense().double().t() + bias.double())
