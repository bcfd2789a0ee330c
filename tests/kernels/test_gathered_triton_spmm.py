"""Triton code around the gathered products: rows of Y from what was computed, and the transpose."""

import pytest
import torch
from sparsefront_kernels.epilogue import ACTIVATIONS, with_epilogue


@pytest.mark.parametrize(("n", "m", "kept"), [(1, 1, 1), (130, 67, 70), (64, 128, 0), (200, 5, 200)])
@pytest.mark.parametrize("activation", ["none", "gelu"])
@pytest.mark.parametrize("more", [False, True], ids=["plain", "bias_and_residual"])
def test_expand(n, m, kept, activation, more, device):
    """Pruned outputs, odd sizes, every part of the epilogue."""
    from sparsefront_kernels.gathered.triton_spmm import expand_rows

    assert activation in ACTIVATIONS
    sums = torch.randn(max(1, kept), m + 3, device=device)[:, :m]
    index = torch.full((n,), -1, dtype=torch.int32, device=device)
    index[torch.randperm(n, device=device)[:kept]] = torch.arange(kept, dtype=torch.int32, device=device)
    bias, residual = (
        (torch.randn(n, device=device), torch.randn(m, n + 2, device=device)[:, :n]) if more else (None, None)
    )
    y = torch.full((m, n + 5), torch.nan, device=device)
    expand_rows(sums, index, y[:, :n], bias, activation, residual)
    rows = torch.where(index[None, :] >= 0, sums.t()[:, index.clamp(min=0).long()], 0.0)
    torch.testing.assert_close(y[:, :n], with_epilogue(rows, bias, activation, residual))
    assert y[:, n:].isnan().all()


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (5, 130), (64, 64), (67, 129)])
def test_transpose(rows, columns, device):
    """Odd sizes, strided source and target, nothing written outside."""
    from sparsefront_kernels.triton_device import transpose_into

    source = torch.randn(rows, columns + 3, device=device, dtype=torch.float16)[:, :columns]
    target = torch.full((columns, rows + 5), torch.nan, device=device, dtype=torch.float16)
    transpose_into(source, target[:, :rows])
    assert torch.equal(target[:, :rows], source.t())
    assert target[:, rows:].isnan().all()
