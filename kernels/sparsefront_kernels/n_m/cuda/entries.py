"""The n:m kernel on CUDA cores as entries of the registry, one for each layout."""

from sparsefront_kernels.common.slab_entries import slab_entries
from sparsefront_kernels.n_m.cuda.op import n_m_cuda
from sparsefront_kernels.n_m.cuda.packed_weight import pack_for_cuda
from sparsefront_kernels.n_m.cuda.tuning import LAUNCHES

ENTRIES = slab_entries("n_m", op=n_m_cuda, pack=pack_for_cuda, launches=LAUNCHES)
