"""The product of tiles plus overlay in plain PyTorch: the reference for tests, and what runs on a CPU."""

from torch import Tensor

from sparsefront_kernels.common.epilogue import accumulation_dtype
from sparsefront_kernels.csr.torch_spmm import csr_reference
from sparsefront_kernels.gathered.reference import gathered_reference
from sparsefront_kernels.gathered_overlay.format import GatheredOverlayFormat


def gathered_overlay_reference(x: Tensor, stored: GatheredOverlayFormat, bias: Tensor | None = None) -> Tensor:
    """Y[M, N] = X[M, K] · W[N, K]ᵀ + bias, the sum of the two parts' references.

    Args:
        x: [M, K], any float dtype; 16-bit inputs are added up in float32, over both parts, and rounded once.
        stored: the weight, on x's device.
        bias: [N] or None.
    Returns:
        [M, N] in x's dtype.
    """
    wide = x.to(accumulation_dtype(x.dtype))
    y = gathered_reference(wide, stored.tiles, bias) + csr_reference(wide, stored.overlay)
    return y.to(x.dtype)
