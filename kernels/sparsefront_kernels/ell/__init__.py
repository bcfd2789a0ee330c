"""The same number of kept weights or small blocks in every row: uniform sparsity."""

from sparsefront_kernels.common.epilogue import rebuilt_product
from sparsefront_kernels.ell.format import ELLFormat
from sparsefront_kernels.ell.sm90 import ENTRY as SM90
from sparsefront_kernels.ell.small_m import ENTRY as SMALL_M
from sparsefront_kernels.kernel_entry import KernelEntry

FORMAT = ELLFormat
ENTRIES = (
    # gathering X for every output would take `count` times its memory per output
    KernelEntry(name="ell_reference", family="ell", product=rebuilt_product, is_reference=True),
    SMALL_M,
    SM90,
)

__all__ = ["ENTRIES", "FORMAT"]
