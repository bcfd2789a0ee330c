"""The kernels of the gathered_2_4 family: sparse products on Hopper, and the gathered family's kernels on dense panels."""

from sparsefront_kernels.common.filled_entry import filled_entry
from sparsefront_kernels.format import SparseFormat
from sparsefront_kernels.gathered.cuda.entries import ENTRIES as CUDA_ENTRIES
from sparsefront_kernels.gathered.cuda.entries import gathered_cuda_product, sixteen_bits_unsupported_reason
from sparsefront_kernels.gathered.cuda.tuning import HALVED_KERNEL, HALVED_LAUNCHES
from sparsefront_kernels.gathered.layout_entry import layout_entry
from sparsefront_kernels.gathered.small_m.entries import ENTRIES as SMALL_M_ENTRIES
from sparsefront_kernels.gathered.triton.entries import ENTRIES as TRITON_ENTRIES
from sparsefront_kernels.gathered_2_4.packed_weight import pack_for_gathered_2_4_cuda, tile_unsupported_reason
from sparsefront_kernels.gathered_2_4.reference import gathered_2_4_reference
from sparsefront_kernels.kernel_entry import KernelEntry
from sparsefront_kernels.problem import LAYOUTS, Problem


def _unsupported(stored: SparseFormat, problem: Problem) -> str | None:
    return sixteen_bits_unsupported_reason(problem, tile_unsupported_reason(stored.tile))


ENTRIES = (
    KernelEntry(
        name="gathered_2_4_reference",
        family="gathered_2_4",
        run=gathered_2_4_reference,
        is_reference=True,
        fuses_epilogue=True,
    ),
    *(
        layout_entry(
            HALVED_KERNEL,
            layout,
            product=gathered_cuda_product,
            pack=pack_for_gathered_2_4_cuda,
            unsupported=_unsupported,
            tunable=HALVED_LAUNCHES,
            family="gathered_2_4",
        )
        for layout in LAYOUTS
    ),
    *(filled_entry(entry, "gathered_2_4") for entry in (*CUDA_ENTRIES, *SMALL_M_ENTRIES, *TRITON_ENTRIES)),
)
