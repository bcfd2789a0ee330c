"""A Linear layer whose product a kernel computes."""

from sparsefront_kernels import KernelEntry, SparseFormat
from torch import Tensor, nn

from sparsefront.inference.sparse_layer import SparseLayer


class SparseLinear(SparseLayer):
    """Takes [..., K] and gives [..., N], as nn.Linear does."""

    def __init__(self, entry: KernelEntry, format: SparseFormat, bias: Tensor | None) -> None:
        super().__init__(entry, format, bias)
        self.out_features, self.in_features = format.shape

    @classmethod
    def replacing(cls, layer: nn.Linear, entry: KernelEntry, format: SparseFormat) -> "SparseLinear":
        return cls(entry, format, layer.bias)

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, self.in_features)
        return self.product(rows).reshape(*x.shape[:-1], self.out_features)
