"""The n:m kernel on CUDA cores as an entry of the registry."""

from sparsefront_kernels.common.slab_entry import slab_entry
from sparsefront_kernels.n_m.cuda.packed_weight import pack_for_cuda
from sparsefront_kernels.n_m.cuda.tuning import LAUNCHES

ENTRY = slab_entry("n_m", pack=pack_for_cuda, launches=LAUNCHES)
