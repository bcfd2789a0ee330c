"""cuSPARSELt's algorithms: its default one, and the one that its own search finds for a product."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, order=True)
class Algorithm:
    """What PyTorch's `_cslt_sparse_mm` passes on to cuSPARSELt.

    Args:
        alg_id: number of the algorithm; its meaning is the library's own.
        split_k: parts of the inputs that are added up separately.
        split_k_mode: how the parts are joined; -1: the library's choice.
    """

    alg_id: int = 0
    split_k: int = 1
    split_k_mode: int = -1


DEFAULT = Algorithm()
ROW_MULTIPLE = 8  # cuSPARSELt's rule for M in 16-bit types (4 would do in 32-bit ones), which is met by padding


def padded_rows(m: int) -> int:
    """M as cuSPARSELt takes it."""
    return -(-m // ROW_MULTIPLE) * ROW_MULTIPLE


def searched(packed: Tensor, x: Tensor) -> Algorithm:
    """What cuSPARSELt's search finds for packed · x; it times its algorithms, so that nothing else may run beside it.

    Args:
        packed: from `torch._cslt_compress`.
        x: [K, M] in the strides of the product; M a multiple of 8.
    """
    library = getattr(torch._C, "_cusparselt", None)
    if hasattr(library, "mm_search"):
        return Algorithm(*library.mm_search(packed, x, None, None, None, False)[:3])
    return Algorithm(int(torch._cslt_sparse_mm_search(packed, x)))  # PyTorch's older function tells only a part of it
