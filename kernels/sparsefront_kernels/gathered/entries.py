"""The kernels of the gathered family."""

from sparsefront_kernels.gathered.cuda_cores.entries import ENTRIES as CUDA_CORES
from sparsefront_kernels.gathered.hopper.entries import ENTRIES as HOPPER
from sparsefront_kernels.gathered.quack.entries import ENTRIES as QUACK
from sparsefront_kernels.gathered.reference import gathered_spmm_reference
from sparsefront_kernels.gathered.skinny.entries import ENTRIES as SKINNY
from sparsefront_kernels.gathered.triton.entries import ENTRIES as TRITON
from sparsefront_kernels.gathered.triton.tf32_entries import ENTRIES as TRITON_TF32
from sparsefront_kernels.kernel_entry import KernelEntry

ENTRIES = (
    KernelEntry(
        name="gathered_reference",
        family="gathered",
        run=gathered_spmm_reference,
        is_reference=True,
        fuses_epilogue=True,
    ),
    *TRITON,
    *HOPPER,
    *CUDA_CORES,
    *SKINNY,
    *TRITON_TF32,
    *QUACK,
)
