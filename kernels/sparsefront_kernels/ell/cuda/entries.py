"""The ELL kernel on CUDA cores as an entry of the registry."""

from sparsefront_kernels.common.slab_entry import slab_entry
from sparsefront_kernels.ell.cuda.packed_weight import pack_for_cuda
from sparsefront_kernels.ell.cuda.tuning import LAUNCHES

ENTRY = slab_entry("ell", pack=pack_for_cuda, launches=LAUNCHES)
