"""Transposing through Triton: odd sizes, strided source and target, nothing written outside."""

import pytest
import torch


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (5, 130), (64, 64), (67, 129)])
def test_transpose(rows, columns, device):
    from sparsefront_kernels.gathered.triton.transpose import transpose_into

    source = torch.randn(rows, columns + 3, device=device, dtype=torch.float16)[:, :columns]
    target = torch.full((columns, rows + 5), torch.nan, device=device, dtype=torch.float16)
    transpose_into(source, target[:, :rows])
    assert torch.equal(target[:, :rows], source.t())
    assert target[:, rows:].isnan().all()
