"""Tiles of outputs that share a list of kept inputs: tile-wise and vector-wise sparsity."""

from sparsefront_kernels.gathered.format import GatheredFormat
from sparsefront_kernels.gathered.indexed import ENTRY as INDEXED
from sparsefront_kernels.gathered.quack import ENTRY as QUACK
from sparsefront_kernels.gathered.reference import gathered_reference
from sparsefront_kernels.gathered.simt import ENTRY as SIMT
from sparsefront_kernels.gathered.sm90 import ENTRY as SM90
from sparsefront_kernels.gathered.small_m import ENTRY as SMALL_M
from sparsefront_kernels.gathered.triton import ENTRY as TRITON
from sparsefront_kernels.gathered.triton import TF32_ENTRY as TRITON_TF32
from sparsefront_kernels.kernel_entry import KernelEntry

FORMAT = GatheredFormat
ENTRIES = (
    KernelEntry(
        name="gathered_reference",
        family="gathered",
        product=gathered_reference,
        is_reference=True,
        fuses_epilogue=True,
    ),
    TRITON,
    SM90,
    SIMT,
    INDEXED,
    SMALL_M,
    TRITON_TF32,
    QUACK,
)

__all__ = ["ENTRIES", "FORMAT"]
