"""The Triton kernel as entries of the registry, one for each layout."""

from sparsefront_kernels.common.device_limits import triton_refusal
from sparsefront_kernels.gathered.layout_entry import layout_entry
from sparsefront_kernels.gathered.triton.product import triton_product
from sparsefront_kernels.gathered.triton.tables import gathered_tables
from sparsefront_kernels.problem import LAYOUTS

ENTRIES = tuple(
    layout_entry("gathered_triton", layout, product=triton_product, prepare=gathered_tables, limits=triton_refusal)
    for layout in LAYOUTS
)
