"""Hopper's sparse instruction reads panels as `wgmma_layout.halved_panels` lays them out: two instructions, alone."""

import ctypes
from pathlib import Path

import pytest
import torch
from drawn_masks import n_of_m
from sparsefront_kernels import cuda_library
from sparsefront_kernels.cuda.wgmma_layout import halved_panels, swizzled

NAME = "sparse_wgmma"


@pytest.mark.gpu
@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize("inputs", [(0, 32), (32, 64), (0, 64)], ids=str)
@pytest.mark.parametrize("by_input", [False, True])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_two_instructions_give_the_dense_product(dtype, by_input, inputs, monkeypatch):
    """By inputs of the first instruction alone (places of lanes 0 and 1 of four), of the second (lanes 2 and 3), of both."""
    monkeypatch.setitem(cuda_library.SOURCES, NAME, Path(__file__).parent / "csrc" / f"{NAME}.cu")
    if reason := cuda_library.unavailable_reason(NAME):
        pytest.skip(reason)
    mask = n_of_m(2, 4, 0.9)(64, 64)
    mask[:, : inputs[0]] = mask[:, inputs[1] :] = False
    weight = torch.where(mask, torch.randn(64, 64), 0.0).to("cuda", dtype)
    x = torch.randn(64, 64, device="cuda", dtype=dtype)  # [rows, inputs]
    operand = swizzled(x.t().contiguous() if by_input else x)
    panel = halved_panels(weight[None])
    y = torch.full((64, 64), torch.nan, device="cuda")
    library = cuda_library.load(NAME)
    pointers = (ctypes.c_void_p(tensor.data_ptr()) for tensor in (panel, operand, y))
    assert library.sparse_wgmma_probe(*pointers, int(by_input), int(dtype == torch.bfloat16)) == 0
    expected = weight.double() @ x.double().t()
    wrong = (y - expected).abs() > 1e-3 * expected.abs().max()
    assert not wrong.any(), f"outputs {wrong.any(1).nonzero().flatten().tolist()} are wrong"
