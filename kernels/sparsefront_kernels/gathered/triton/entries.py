"""The Triton kernel as an entry of the registry."""

from sparsefront_kernels.common.device_support import triton_unsupported_reason
from sparsefront_kernels.gathered.triton.packed_weight import pack_for_triton
from sparsefront_kernels.gathered.triton.product import triton_product
from sparsefront_kernels.kernel_entry import KernelEntry
from sparsefront_kernels.problem import LAYOUTS

ENTRY = KernelEntry(
    name="gathered_triton",
    family="gathered",
    product=triton_product,
    pack=pack_for_triton,
    unsupported=triton_unsupported_reason,
    requires_cuda=True,
    layouts=LAYOUTS,
    fuses_epilogue=True,
)
