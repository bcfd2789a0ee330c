"""The Triton kernel as entries of the registry, one for each layout."""

from sparsefront_kernels.common.device_support import triton_unsupported_reason
from sparsefront_kernels.gathered.layout_entry import layout_entry
from sparsefront_kernels.gathered.triton.packed_weight import pack_for_triton
from sparsefront_kernels.gathered.triton.product import triton_product
from sparsefront_kernels.problem import LAYOUTS

ENTRIES = tuple(
    layout_entry(
        "gathered_triton", layout, product=triton_product, pack=pack_for_triton, unsupported=triton_unsupported_reason
    )
    for layout in LAYOUTS
)
