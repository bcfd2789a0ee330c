"""Every n:m up to 64: masks, storage and the nearest that is named."""

import pytest
import torch
from sparsefront_kernels import FORMATS

from sparsefront.patterns.n_m import NM

# 2:4 to 16:32 and 1:4 to 8:32 are those of nmSPARSE and NM-SpMM; m need not be a power of two
WINDOWS = [(2, 4), (4, 8), (8, 16), (16, 32), (1, 4), (2, 8), (4, 16), (8, 32), (32, 64), (1, 64), (3, 32)]
WINDOWS += [(1, 3), (2, 5), (3, 6), (5, 12), (7, 24), (11, 48), (30, 60), (63, 64), (1, 2)]


@pytest.mark.parametrize(("n", "m"), WINDOWS)
def test_exactly_n_of_every_m(n, m):
    importance = torch.rand(5, 3 * m, generator=torch.Generator().manual_seed(n))
    pattern, sparsity = NM(n, m), 1 - n / m
    mask = pattern.mask(importance, sparsity)
    best = importance.view(5, 3, m).sort(dim=2, descending=True).values[..., n - 1 : n]
    assert torch.equal(mask, (importance.view(5, 3, m) >= best).flatten(1))  # no ties here
    pattern.check(mask, sparsity)
    family, parameters = pattern.storage((5, 3 * m), sparsity)
    assert (family, parameters) == ("n_m", {"n": n, "m": m})
    assert torch.equal(FORMATS[family].from_dense(importance, mask, **parameters).to_dense(), importance * mask)


@pytest.mark.parametrize(("n", "m"), WINDOWS)
def test_an_explicit_m_finds_its_n(n, m):
    assert NM(m=m).window((4, 2 * m), 1 - n / m) == (n, m)
