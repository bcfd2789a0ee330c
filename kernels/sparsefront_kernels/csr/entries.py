"""The kernels of the CSR family."""

from torch import Tensor

from sparsefront_kernels.csr.cuda import ENTRY as CUDA
from sparsefront_kernels.csr.format import CSRFormat
from sparsefront_kernels.csr.reference import csr_reference
from sparsefront_kernels.csr.torch_spmm import csr_torch, csr_unsupported_reason
from sparsefront_kernels.kernel_entry import KernelEntry


def _torch_sparse(x: Tensor, stored: CSRFormat, bias: Tensor | None = None) -> Tensor:
    """x [M, K] → [M, N]."""
    return csr_torch(x, stored.values, stored.row_pointers, stored.columns, bias, *stored.shape)


TORCH = KernelEntry(
    name="csr_torch", family="csr", product=_torch_sparse, unsupported=csr_unsupported_reason, requires_cuda=True
)
ENTRIES = (KernelEntry(name="csr_reference", family="csr", product=csr_reference, is_reference=True), TORCH, CUDA)
