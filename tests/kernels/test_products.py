"""Products on the cases that other tests share; `test_random_problems.py` has every kernel against float64."""

import pytest
import torch
from in_layout import InLayout, every_layout
from random_problems import precision_allowed
from sparsefront_kernels import FORMATS, Problem, find
from sparsefront_kernels.problem import LAYOUTS, X_FEATURE_MAJOR

DTYPES = [torch.float32, torch.float16, torch.bfloat16]


def kernels_for(stored, problem):
    """All usable kernels with the problem in their own layout."""
    for layout in LAYOUTS:
        asked = Problem(problem.m, problem.k, problem.n, problem.dtype, problem.device, layout)
        for kernel in find(stored, asked).usable:
            yield InLayout(kernel, layout), asked


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
