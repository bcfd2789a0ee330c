"""The CSR kernel on CUDA cores as entries of the registry, one for each layout."""

from sparsefront_kernels.common.slab_entries import slab_entries
from sparsefront_kernels.csr.cuda.op import csr_cuda
from sparsefront_kernels.csr.cuda.packed_weight import pack_for_cuda
from sparsefront_kernels.csr.cuda.tuning import LAUNCHES

ENTRIES = slab_entries("csr", op=csr_cuda, pack=pack_for_cuda, launches=LAUNCHES)
