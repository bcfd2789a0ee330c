"""The kernels of the gathered_2_4 family: sparse products on Hopper, and the gathered family's kernels on dense panels."""

from sparsefront_kernels.format import SparseFormat
from sparsefront_kernels.gathered.cuda.entries import ENTRY as CUDA
from sparsefront_kernels.gathered.cuda.entries import gathered_sm90_product, sixteen_bits_unsupported_reason
from sparsefront_kernels.gathered.cuda.tuning import HALVED_KERNEL, HALVED_LAUNCHES
from sparsefront_kernels.gathered.small_m import ENTRY as SMALL_M
from sparsefront_kernels.gathered.triton import ENTRY as TRITON
from sparsefront_kernels.gathered_2_4.packed_weight import pack_for_gathered_2_4_sm90, tile_unsupported_reason
from sparsefront_kernels.gathered_2_4.reference import gathered_2_4_reference
from sparsefront_kernels.kernel_entry import KernelEntry, filled_entry
from sparsefront_kernels.problem import LAYOUTS, Problem


def _unsupported(stored: SparseFormat, problem: Problem) -> str | None:
    return sixteen_bits_unsupported_reason(problem, tile_unsupported_reason(stored.tile))


ENTRIES = (
    KernelEntry(
        name="gathered_2_4_reference",
        family="gathered_2_4",
        product=gathered_2_4_reference,
        is_reference=True,
        fuses_epilogue=True,
    ),
    KernelEntry(
        name=HALVED_KERNEL,
        family="gathered_2_4",
        product=gathered_sm90_product,
        pack=pack_for_gathered_2_4_sm90,
        unsupported=_unsupported,
        requires_cuda=True,
        layouts=LAYOUTS,
        fuses_epilogue=True,
        tunable=HALVED_LAUNCHES,
    ),
    *(filled_entry(entry, "gathered_2_4") for entry in (CUDA, SMALL_M, TRITON)),
)
