"""The ELL product in plain PyTorch: the reference for tests, and what runs on a CPU."""

from torch import Tensor

from sparsefront_kernels.common.epilogue import rebuilt_product
from sparsefront_kernels.ell.format import ELLFormat


def ell_reference(x: Tensor, stored: ELLFormat, bias: Tensor | None = None) -> Tensor:
    """See `rebuilt_product`: gathering X for every output would take `count` times its memory per output."""
    return rebuilt_product(x, stored, bias)
