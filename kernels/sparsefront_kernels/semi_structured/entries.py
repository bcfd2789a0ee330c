"""The kernels of the 2:4 family."""

from torch import Tensor

from sparsefront_kernels.common.permutation import columns_in_order
from sparsefront_kernels.kernel_entry import KernelEntry
from sparsefront_kernels.semi_structured.reference import semi_structured_spmm_reference
from sparsefront_kernels.semi_structured.torch_spmm import (
    SemiStructuredPacked,
    pack_for_cusparselt,
    semi_structured_spmm,
    semi_structured_spmm_columns,
    semi_structured_spmm_columns_to_rows,
    semi_structured_unsupported_reason,
)
from sparsefront_kernels.semi_structured.tuning import ALGORITHMS


def _cusparselt(x: Tensor, weight: SemiStructuredPacked, bias: Tensor | None = None) -> Tensor:
    """x [M, K] → [M, N]; where the inputs have an order of their own, X is copied into it first."""
    x = columns_in_order(x, weight.input_order)
    return semi_structured_spmm(x, weight.packed, bias, weight.n, weight.k)


def _cusparselt_columns(x: Tensor, weight: SemiStructuredPacked, bias: Tensor | None = None) -> Tensor:
    """x [K, M] → [N, M]; where the inputs have an order of their own, X is copied into it first."""
    return semi_structured_spmm_columns(_in_order(x, weight), weight.packed, bias, weight.n, weight.k)


def _cusparselt_columns_to_rows(x: Tensor, weight: SemiStructuredPacked, bias: Tensor | None = None) -> Tensor:
    """x [K, M] → [M, N]; where the inputs have an order of their own, X is copied into it first."""
    return semi_structured_spmm_columns_to_rows(_in_order(x, weight), weight.packed, bias, weight.n, weight.k)


def _in_order(x: Tensor, weight: SemiStructuredPacked) -> Tensor:
    return x if weight.input_order is None else x.index_select(0, weight.input_order)


ENTRIES = (
    KernelEntry(
        name="semi_structured_reference",
        family="semi_structured",
        run=semi_structured_spmm_reference,
        is_reference=True,
    ),
    KernelEntry(
        name="semi_structured_torch",
        family="semi_structured",
        run=_cusparselt,
        pack=pack_for_cusparselt,
        unsupported=semi_structured_unsupported_reason,
        requires_cuda=True,
        tunable=ALGORITHMS,
    ),
    KernelEntry(
        name="semi_structured_torch_feature_major",
        family="semi_structured",
        run=_cusparselt_columns,
        pack=pack_for_cusparselt,
        unsupported=semi_structured_unsupported_reason,
        requires_cuda=True,
        layout="feature_major",
        tunable=ALGORITHMS,
    ),
    KernelEntry(
        name="semi_structured_torch_feature_to_row",
        family="semi_structured",
        run=_cusparselt_columns_to_rows,
        pack=pack_for_cusparselt,
        unsupported=semi_structured_unsupported_reason,
        requires_cuda=True,
        layout="feature_to_row",
        tunable=ALGORITHMS,
    ),
)
