"""The product of blocks that are 2:4 sparse themselves, in plain PyTorch: the reference for tests, and what runs on a CPU."""

from torch import Tensor

from sparsefront_kernels.blocked.reference import blocked_reference
from sparsefront_kernels.blocked_2_4.format import Blocked24Format


def blocked_2_4_reference(x: Tensor, stored: Blocked24Format, bias: Tensor | None = None) -> Tensor:
    """As `blocked_reference`, over whole blocks that are rebuilt at every call: correct, not fast."""
    return blocked_reference(x, stored.filled(), bias)
