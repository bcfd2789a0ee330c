"""From the outputs that are computed, feature-major and side by side, to whole rows of a row-major Y."""

import triton
import triton.language as tl
from torch import Tensor

from sparsefront_kernels.common.launch import supports_pdl
from sparsefront_kernels.common.triton_device import activated

BLOCK = 64  # outputs and rows of a tile: reads and writes are runs of 128 bytes in 16-bit types


@triton.jit
def _expand_kernel(
    sums_ptr,  # [computed outputs, M]
    place_ptr,  # [n]: of an output among those that are computed, or -1
    bias_ptr,  # [n]
    residual_ptr,  # [m, n]
    y_ptr,  # [m, n]
    n,
    m,
    sums_stride,
    residual_stride,
    y_stride,
    HAS_BIAS: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    ACTIVATION: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    blocks = tl.cdiv(n, BLOCK)
    output = tl.program_id(0) % blocks * BLOCK + tl.arange(0, BLOCK)
    row = (tl.program_id(0) // blocks).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    place = tl.load(place_ptr + output, mask=output < n, other=-1).to(tl.int64)
    if PDL:
        tl.extra.cuda.gdc_wait()  # the kernel before may not have ended
        tl.extra.cuda.gdc_launch_dependents()  # a kernel that reads y waits for the end of this one
    computed = (place >= 0)[:, None] & (row < m)[None, :]
    v = tl.load(sums_ptr + place[:, None] * sums_stride + row[None, :], mask=computed, other=0.0).to(tl.float32)
    if HAS_BIAS:
        v += tl.load(bias_ptr + output, mask=output < n, other=0.0).to(tl.float32)[:, None]
    v = tl.trans(activated(v, ACTIVATION))
    exists = (row < m)[:, None] & (output < n)[None, :]
    if HAS_RESIDUAL:
        v += tl.load(residual_ptr + row[:, None] * residual_stride + output[None, :], mask=exists, other=0.0).to(
            tl.float32
        )
    tl.store(y_ptr + row[:, None] * y_stride + output[None, :], v.to(y_ptr.dtype.element_ty), mask=exists)


def expand_rows(
    sums: Tensor, place: Tensor, y: Tensor, bias: Tensor | None, activation: str, residual: Tensor | None
) -> None:
    """Write y = activation(sums + bias) + residual, where outputs that are not computed have sums of zero.

    Args:
        sums: [computed outputs, at least M], with M contiguous.
        place: int32 [N], the row of each output in `sums`, or -1.
        y, residual: [M, N] with N contiguous; residual may be None.
        bias: [N] or None.
        activation: a name of `common.epilogue.ACTIVATIONS`.
    """
    m, n = y.shape
    pdl = supports_pdl(y.device)
    _expand_kernel[(triton.cdiv(n, BLOCK) * triton.cdiv(m, BLOCK),)](
        sums,
        place,
        y if bias is None else bias,
        y if residual is None else residual,
        y,
        n,
        m,
        sums.stride(0),
        0 if residual is None else residual.stride(0),
        y.stride(0),
        HAS_BIAS=bias is not None,
        HAS_RESIDUAL=residual is not None,
        ACTIVATION=activation,
        BLOCK=BLOCK,
        PDL=pdl,
        num_warps=4,
        **({"launch_pdl": True} if pdl else {}),
    )
