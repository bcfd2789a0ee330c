"""The pruned weights of the networks in Table 1 of the uniform-sparsity paper, as products, and how often each occurs.

Source: Muralidharan, "Uniform Sparsity in Deep Neural Networks", 2023, table 1. A convolution counts as the product of its
unrolled inputs; the paper takes 128 columns for every weight of ResNet50, whatever the size of its images.
"""

from collections import Counter
from dataclasses import dataclass

Size = tuple[int, int]
"""(K, N) of a weight."""


@dataclass(frozen=True)
class PaperNetwork:
    """A row of the table.

    Args:
        m: rows of X.
        sparsity: asked of every weight.
        weights: (K, N) -> how many weights have it.
        uspmm, uspmm_vec: the paper's two kernels over cuSPARSE's CSR, geometric mean over the weights.
    """

    name: str
    m: int
    sparsity: float
    weights: dict[Size, int]
    uspmm: float
    uspmm_vec: float


def table_1() -> list[PaperNetwork]:
    """Both networks of the table."""
    return [
        PaperNetwork("Transformer-Big", 1024, 0.65, transformer_big(), uspmm=1.49, uspmm_vec=1.62),
        PaperNetwork("ResNet50", 128, 0.81, resnet50(), uspmm=1.31, uspmm_vec=1.01),
    ]


def transformer_big() -> dict[Size, int]:
    """Six encoder layers with one attention, six decoder layers with two, four weights each, and an MLP in every layer."""
    return {(1024, 1024): 6 * 4 + 6 * 8, (1024, 4096): 12, (4096, 1024): 12}


def resnet50() -> dict[Size, int]:
    """All convolutions but the first, and the classifier."""
    from torch import nn
    from torchvision.models import resnet50

    layers = [module for module in resnet50().modules() if isinstance(module, nn.Conv2d | nn.Linear)]
    return dict(Counter(tuple(reversed(layer.weight.flatten(1).shape)) for layer in layers[1:]))
