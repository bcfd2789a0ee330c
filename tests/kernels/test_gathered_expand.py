"""Rows of Y made of the outputs that are computed: pruned outputs, odd sizes, every part of the epilogue."""

import pytest
import torch
from sparsefront_kernels.common.epilogue import ACTIVATIONS, with_epilogue


@pytest.mark.parametrize(("n", "m", "kept"), [(1, 1, 1), (130, 67, 70), (64, 128, 0), (200, 5, 200)])
@pytest.mark.parametrize("activation", ["none", "gelu"])
@pytest.mark.parametrize("more", [False, True], ids=["plain", "bias_and_residual"])
def test_expand(n, m, kept, activation, more, device):
    from sparsefront_kernels.gathered.triton.expand import expand_rows

    assert activation in ACTIVATIONS
    sums = torch.randn(max(1, kept), m + 3, device=device)[:, :m]
    place = torch.full((n,), -1, dtype=torch.int32, device=device)
    place[torch.randperm(n, device=device)[:kept]] = torch.arange(kept, dtype=torch.int32, device=device)
    bias, residual = (
        (torch.randn(n, device=device), torch.randn(m, n + 2, device=device)[:, :n]) if more else (None, None)
    )
    y = torch.full((m, n + 5), torch.nan, device=device)
    expand_rows(sums, place, y[:, :n], bias, activation, residual)
    rows = torch.where(place[None, :] >= 0, sums.t()[:, place.clamp(min=0).long()], 0.0)
    torch.testing.assert_close(y[:, :n], with_epilogue(rows, bias, activation, residual))
    assert y[:, n:].isnan().all()
