"""The 2:4 product in plain PyTorch: the truth for tests and the path on a CPU."""

from torch import Tensor

from sparsefront_kernels.common.epilogue import rebuilt_product
from sparsefront_kernels.semi_structured.format import SemiStructuredFormat


def semi_structured_spmm_reference(x: Tensor, stored: SemiStructuredFormat, bias: Tensor | None = None) -> Tensor:
    """See `rebuilt_product`: PyTorch's own 2:4 product runs on a GPU alone."""
    return rebuilt_product(x, stored, bias)
