"""The kernels of the 2:4 family."""

from torch import Tensor

from sparsefront_kernels.common.indices import columns_in_order
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


def _cusparselt(x: Tensor, weight: SemiStructuredPacked, bias: Tensor | None = None, *, layout: str) -> Tensor:
    """x and y in the layout's order; where the inputs have an order of their own, X is copied into it first."""
    if layout == "row_major":
        x = columns_in_order(x, weight.input_order)
    elif weight.input_order is not None:
        x = x.index_select(0, weight.input_order)
    return _PRODUCTS[layout](x, weight.packed, bias, weight.n, weight.k)


_PRODUCTS = {
    "row_major": semi_structured_spmm,
    "feature_major": semi_structured_spmm_columns,
    "feature_to_row": semi_structured_spmm_columns_to_rows,
}

ENTRIES = (
    KernelEntry(
        name="semi_structured_reference",
        family="semi_structured",
        product=semi_structured_spmm_reference,
        is_reference=True,
    ),
    KernelEntry(
        name="semi_structured_torch",
        family="semi_structured",
        product=_cusparselt,
        pack=pack_for_cusparselt,
        unsupported=semi_structured_unsupported_reason,
        requires_cuda=True,
        layouts=tuple(_PRODUCTS),
        tunable=ALGORITHMS,
    ),
)
