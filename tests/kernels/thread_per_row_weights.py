"""Weights for the tests of the kernels of which each thread owns rows of X."""

import torch
from drawn_masks import any_order, free, n_of_m, order, same_count
from sparsefront_kernels import FORMATS


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
    """A weight whose outputs and inputs fill neither blocks nor k-blocks; of the n:m patterns another one for each block."""
    k = {1: 1000, 2: 256, 4: 520}[block]
    if family == "ell":
        return stored_ell((128, k), block, k // block // 5, dtype, device)
    if family == "n_m":
        groups, n, m = {1: (250, 2, 4), 2: (8, 3, 32), 4: (74, 5, 7)}[block]
        return stored_n_m(130, groups, n, m, dtype, device, permuted=block != 1)
    return stored_csr((130, k), 0.2, dtype, device)
