"""Every kernel against float64, on odd shapes and poisoned memory."""

import pytest
import torch
from in_layout import InLayout, every_layout
from random_problems import cancels, precision_allowed
from sparsefront_kernels import FORMATS, Problem, find
from sparsefront_kernels.problem import LAYOUTS, X_FEATURE_MAJOR

ROWS = [0, 1, 7, 33, 131]
DTYPES = [torch.float32, torch.float16, torch.bfloat16]


def kernels_for(stored, problem):
    """All usable kernels with the problem in their own layout."""
    for layout in LAYOUTS:
        asked = Problem(problem.m, problem.k, problem.n, problem.dtype, problem.device, layout)
        for kernel in find(stored, asked).usable:
            yield InLayout(kernel, layout), asked


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_product_against_float64(case, dtype, device, activations, expected_product, assert_close, poisoned_memory):
    stored = case.build().to(device, dtype)
    n, k = stored.shape
    bias = torch.randn(n, device=device)
    on_gpu = device.type == "cuda"
    # without a GPU all dtypes take the same path, whatever the number of rows; test_random_problems.py draws more of them
    rows = ROWS if on_gpu else [33, 0] if dtype == torch.float32 else [7]
    problems, packed = [Problem(m, k, n, dtype, device) for m in rows], {}
    for kernel, problem in (found for asked in problems for found in kernels_for(stored, asked)):
        if kernel.kernel.name not in packed:
            packed[kernel.kernel.name] = kernel.pack(stored)
        kinds = [("inside_nan", bias), ("plain", None)]
        if not on_gpu:
            kinds = kinds[problem.m == 7 :][:1]
        elif (
            "triton" in kernel.name
        ):  # which is compiled for each, and for one row: kinds take turns by layout and dtype
            kinds = [kinds[(LAYOUTS.index(kernel.layout) + DTYPES.index(dtype) + (problem.m == 1)) % 2]]
        for kind, added in kinds:
            x = activations(problem, kind)
            while cancels(x, stored, added, kernel.layout):
                x = activations(problem, kind)
            with poisoned_memory():
                y = kernel.run(x, packed[kernel.kernel.name], added)
            assert (y.dtype, y.device) == (dtype, x.device), kernel.name
            assert tuple(y.shape) == problem.y_shape, kernel.name
            assert_close(y, expected_product(x, stored, added, kernel.layout), kernel.dtype_name)


@pytest.mark.parametrize("dtype", DTYPES[: 1 + torch.cuda.is_available()], ids=str)
def test_transposed_activations(case, dtype, device, activations, expected_product, assert_close):
    stored = case.build().to(device, dtype)
    for kernel, problem in kernels_for(stored, Problem(18, stored.shape[1], stored.shape[0], dtype, device)):
        x = activations(problem, "transposed")
        y = kernel.run(x, kernel.pack(stored), None)
        assert_close(y, expected_product(x, stored, None, kernel.layout), kernel.dtype_name)


@pytest.mark.parametrize("dtype", [torch.float64], ids=str)
def test_references_reach_float64(case, dtype, device, activations, expected_product):
    """The check of a kernel before it is timed asks the reference for more precision than the kernel has."""
    stored = case.build().to(device, dtype)
    problem = Problem(9, stored.shape[1], stored.shape[0], dtype, device)
    usable = find(stored, problem).usable
    assert [kernel.is_reference for kernel in usable] == [True]
    x, bias = activations(problem), torch.randn(problem.n, dtype=dtype, device=device)
    torch.testing.assert_close(
        usable[0].run(x, stored, bias), expected_product(x, stored, bias), rtol=1e-12, atol=1e-12
    )


def test_pruned_inputs_are_never_read(device):
    """Where no output keeps an input, its NaN must not reach Y: input 0 above all, which masked loads fall back on."""
    mask = torch.rand(24, 83) < 0.5
    mask[:, 0] = mask[:, 40] = False
    mask = mask[::8].repeat_interleave(8, dim=0)  # tiles of 8 outputs
    stored = FORMATS["gathered"].from_dense(torch.randn(24, 83), mask, tile=8).to(device)
    for kernel, problem in kernels_for(stored, Problem(5, 83, 24, torch.float32, device)):
        x = torch.randn(problem.x_shape, device=device)
        (x.t() if kernel.layout in X_FEATURE_MAJOR else x)[:, ~mask.any(dim=0)] = torch.nan
        assert not kernel.run(x, kernel.pack(stored), None).isnan().any(), kernel.name


@pytest.mark.parametrize("kernel", every_layout(), ids=lambda kernel: kernel.name)
def test_every_kernel_is_exercised(kernel, cases):
    """A kernel that the table of cases never reaches would pass unseen."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    with precision_allowed(kernel):
        reasons = {
            kernel.unsupported_reason(
                stored, Problem(8, stored.shape[1], stored.shape[0], dtype, device, kernel.layout)
            )
            for stored in (case.build() for case in cases.values() if case.family == kernel.family)
            for dtype in DTYPES
        }
    lacking = [reason for reason in sorted(reasons - {None}, reverse=True) if reason.startswith("needs ")]
    if None not in reasons and lacking:
        pytest.skip(lacking[0])  # a GPU, an instruction of it, or a compiler
    assert None in reasons, reasons
