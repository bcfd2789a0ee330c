"""The kernels of the n:m family."""

from torch import Tensor

from sparsefront_kernels.common.device_limits import triton_refusal
from sparsefront_kernels.common.permutation import columns_in_order
from sparsefront_kernels.kernel_entry import KernelEntry
from sparsefront_kernels.n_m.format import NMFormat
from sparsefront_kernels.n_m.op import n_m_spmm
from sparsefront_kernels.n_m.reference import n_m_spmm_reference


def _triton(x: Tensor, stored: NMFormat, bias: Tensor | None = None) -> Tensor:
    """x [M, K] → [M, N]; where the inputs have an order of their own, X is copied into it first."""
    x = columns_in_order(x, stored.input_order)
    return n_m_spmm(x, stored.values, stored.indices, bias, stored.m)


ENTRIES = (
    KernelEntry(name="n_m_reference", family="n_m", run=n_m_spmm_reference, is_reference=True),
    KernelEntry(name="n_m_triton", family="n_m", run=_triton, limits=triton_refusal, requires_cuda=True),
)
