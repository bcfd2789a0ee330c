"""The kernels of the gathered family."""

from sparsefront_kernels.common.device_limits import triton_refusal
from sparsefront_kernels.gathered import fp32_entries, pairs_entries, skinny_entries, tf32_entries
from sparsefront_kernels.gathered.layout_entry import layout_entry
from sparsefront_kernels.gathered.reference import gathered_spmm_reference
from sparsefront_kernels.gathered.tables import gathered_tables
from sparsefront_kernels.gathered.triton_product import triton_product
from sparsefront_kernels.kernel_entry import KernelEntry
from sparsefront_kernels.problem import LAYOUTS

ENTRIES = (
    KernelEntry(
        name="gathered_reference",
        family="gathered",
        run=gathered_spmm_reference,
        is_reference=True,
        fuses_epilogue=True,
    ),
    *(
        layout_entry("gathered_triton", layout, product=triton_product, prepare=gathered_tables, limits=triton_refusal)
        for layout in LAYOUTS
    ),
    *pairs_entries.ENTRIES,
    *fp32_entries.ENTRIES,
    *skinny_entries.ENTRIES,
    *tf32_entries.ENTRIES,
)
