"""The kernels of the blocked family."""

from torch import Tensor

from sparsefront_kernels.blocked.format import BlockedFormat
from sparsefront_kernels.blocked.op import blocked_spmm
from sparsefront_kernels.blocked.reference import blocked_spmm_reference
from sparsefront_kernels.common.device_limits import triton_refusal
from sparsefront_kernels.kernel_entry import KernelEntry


def _triton(x: Tensor, stored: BlockedFormat, bias: Tensor | None = None) -> Tensor:
    """x [M, K] → [M, N]."""
    return blocked_spmm(x, stored.values, stored.row_pointers, stored.block_columns, bias, *stored.shape)


ENTRIES = (
    KernelEntry(name="blocked_reference", family="blocked", run=blocked_spmm_reference, is_reference=True),
    KernelEntry(name="blocked_triton", family="blocked", run=_triton, limits=triton_refusal, requires_cuda=True),
)
