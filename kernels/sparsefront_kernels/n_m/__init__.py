"""n weights kept of every m consecutive inputs."""

from sparsefront_kernels.common.epilogue import rebuilt_product
from sparsefront_kernels.kernel_entry import KernelEntry
from sparsefront_kernels.n_m.format import NMFormat
from sparsefront_kernels.n_m.mma import ENTRY as MMA
from sparsefront_kernels.n_m.rebuilt import ENTRY as REBUILT
from sparsefront_kernels.n_m.sm90 import ENTRY as SM90
from sparsefront_kernels.n_m.small_m import ENTRY as SMALL_M

FORMAT = NMFormat
ENTRIES = (
    # every output keeps its own inputs, so that PyTorch has no product that would use fewer of them
    KernelEntry(name="n_m_reference", family="n_m", product=rebuilt_product, is_reference=True),
    MMA,
    SMALL_M,
    REBUILT,
    SM90,
)

__all__ = ["ENTRIES", "FORMAT"]
