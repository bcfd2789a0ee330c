"""A masked weight in the format that its pattern names."""

from typing import Any

from sparsefront_kernels import FORMATS, SparseFormat
from torch import Tensor

from sparsefront.masks.permutation import Permutation


def store(
    weight: Tensor, mask: Tensor, storage: tuple[str, dict[str, Any]], permutation: Permutation | None = None
) -> SparseFormat:
    """A weight in the family and with the parameters that a pattern's `storage` names.

    Args:
        weight, mask: [N, K] in the network's order; the mask is bool, True = keep.
        permutation: the order in which the mask obeys its pattern, which the format then holds; None: its own.
    Raises:
        ValueError: the mask does not have the family's structure.
    """
    family, parameters = storage
    orders = {} if permutation is None else permutation.orders()
    return FORMATS[family].from_dense(weight, mask, **parameters, **orders)
