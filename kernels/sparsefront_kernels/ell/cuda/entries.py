"""The ELL kernel on CUDA cores as entries of the registry, one for each layout."""

from sparsefront_kernels.common.slab_entries import slab_entries
from sparsefront_kernels.ell.cuda.op import ell_cuda
from sparsefront_kernels.ell.cuda.packed_weight import pack_for_cuda
from sparsefront_kernels.ell.cuda.tuning import LAUNCHES

ENTRIES = slab_entries("ell", op=ell_cuda, pack=pack_for_cuda, launches=LAUNCHES)
