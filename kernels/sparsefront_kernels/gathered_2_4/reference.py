"""The product of gathered panels that are 2:4 sparse inside, in plain PyTorch: for tests, and on a CPU."""

from torch import Tensor

from sparsefront_kernels.gathered.reference import gathered_reference
from sparsefront_kernels.gathered_2_4.format import Gathered24Format


def gathered_2_4_reference(
    x: Tensor,
    stored: Gathered24Format,
    bias: Tensor | None = None,
    *,
    activation: str = "none",
    residual: Tensor | None = None,
) -> Tensor:
    """As `gathered_reference`, over dense panels that are rebuilt at every call: correct, not fast."""
    return gathered_reference(x, stored.filled(), bias, activation=activation, residual=residual)
