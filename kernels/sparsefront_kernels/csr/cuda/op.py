"""The CSR product on CUDA cores as a PyTorch op."""

import torch
from torch import Tensor

from sparsefront_kernels.common.slab_op import slab_op
from sparsefront_kernels.csr.cuda.tuning import LAUNCHES


@torch.library.custom_op("sparsefront::csr_cuda", mutates_args=())
def csr_cuda(
    x: Tensor,
    values: Tensor,
    places: Tensor,
    pointers: Tensor,
    order: Tensor | None,
    bias: Tensor | None,
    n: int,
    k: int,
    x_feature_major: bool,
) -> Tensor:
    """Yᵀ = W · Xᵀ + bias with the parts of `pack_for_cuda`; see `slab_op`."""
    return slab_op(LAUNCHES, x, values, places, pointers, order, bias, n, k, x_feature_major)


@csr_cuda.register_fake
def _(x, values, places, pointers, order, bias, n, k, x_feature_major):
    return x.new_empty(n, x.shape[1 if x_feature_major else 0])
