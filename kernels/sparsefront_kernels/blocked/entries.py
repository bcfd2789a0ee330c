"""The kernels of the blocked family."""

from torch import Tensor

from sparsefront_kernels.blocked.as_tiles import ENTRY as AS_TILES
from sparsefront_kernels.blocked.cuda.entries import ENTRY as CUDA
from sparsefront_kernels.blocked.format import BlockedFormat
from sparsefront_kernels.blocked.op import blocked_triton
from sparsefront_kernels.blocked.reference import blocked_reference
from sparsefront_kernels.blocked.triton_tuning import LAUNCHES
from sparsefront_kernels.common.device_support import triton_unsupported_reason
from sparsefront_kernels.kernel_entry import KernelEntry


def _triton(x: Tensor, stored: BlockedFormat, bias: Tensor | None = None) -> Tensor:
    """x [M, K] → [M, N]."""
    return blocked_triton(x, stored.values, stored.row_pointers, stored.block_columns, bias, *stored.shape)


ENTRIES = (
    KernelEntry(name="blocked_reference", family="blocked", product=blocked_reference, is_reference=True),
    CUDA,  # blocks that fill a tensor-core instruction
    AS_TILES,  # smaller ones
    KernelEntry(
        name="blocked_triton",
        family="blocked",
        product=_triton,
        unsupported=triton_unsupported_reason,
        requires_cuda=True,
        tunable=LAUNCHES,
    ),
)
