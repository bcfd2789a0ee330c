"""The kernels of the n:m family."""

import torch
from torch import Tensor

from sparsefront_kernels.common.device_support import triton_unsupported_reason
from sparsefront_kernels.common.indices import columns_in_order
from sparsefront_kernels.kernel_entry import KernelEntry
from sparsefront_kernels.n_m.cuda import ENTRY as CUDA
from sparsefront_kernels.n_m.format import NMFormat
from sparsefront_kernels.n_m.mma.entries import ENTRY as MMA
from sparsefront_kernels.n_m.op import n_m_triton
from sparsefront_kernels.n_m.rebuilt import ENTRY as REBUILT
from sparsefront_kernels.n_m.reference import n_m_reference
from sparsefront_kernels.n_m.small_m.entries import ENTRY as SMALL_M


def _triton(x: Tensor, stored: NMFormat, bias: Tensor | None = None) -> Tensor:
    """x [M, K] → [M, N]; where the inputs have an order of their own, X is copied into it first."""
    x = columns_in_order(x, stored.input_order)
    return n_m_triton(x, stored.values, stored.indices, bias, stored.m)


ENTRIES = (
    KernelEntry(name="n_m_reference", family="n_m", product=n_m_reference, is_reference=True),
    MMA,
    SMALL_M,
    REBUILT,
    KernelEntry(
        name="n_m_triton",
        family="n_m",
        product=_triton,
        unsupported=triton_unsupported_reason,
        requires_cuda=True,
        # 2.2 to 20 times the time of n_m_sm90 at 256 and 4096 rows (H200, experiments/operators/h200.csv)
        slow_in=(torch.float32,),
    ),
    CUDA,
)
