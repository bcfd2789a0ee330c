"""The n:m product in plain PyTorch: the reference for tests, and what runs on a CPU."""

from torch import Tensor

from sparsefront_kernels.common.epilogue import rebuilt_product
from sparsefront_kernels.n_m.format import NMFormat


def n_m_reference(x: Tensor, stored: NMFormat, bias: Tensor | None = None) -> Tensor:
    """See `rebuilt_product`: every output keeps its own inputs, so PyTorch has no product that would use fewer of them."""
    return rebuilt_product(x, stored, bias)
