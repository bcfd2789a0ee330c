"""The kernels of the blocked family."""

from sparsefront_kernels.blocked.as_tiles import ENTRY as AS_TILES
from sparsefront_kernels.blocked.cuda.entries import ENTRY as CUDA
from sparsefront_kernels.blocked.reference import blocked_reference
from sparsefront_kernels.blocked.triton import ENTRY as TRITON
from sparsefront_kernels.kernel_entry import KernelEntry

ENTRIES = (
    KernelEntry(name="blocked_reference", family="blocked", product=blocked_reference, is_reference=True),
    CUDA,  # blocks that fill a tensor-core instruction
    AS_TILES,  # smaller ones
    TRITON,
)
