"""Device code of `n_m_rebuilt`: reads kept weights and writes dense windows, both as streams."""

import triton
import triton.language as tl
from torch import Tensor

from sparsefront_kernels.cuda.launch import power_of_two_within

INPUTS_AT_A_TIME = 256  # per output: 512 contiguous bytes of 16-bit weights
OUTPUTS_AT_A_TIME = 8


@triton.jit
def _with_kept(w, values_ptr, indices_ptr, stored, exists, places):
    """The window [BLOCK_N, WINDOW, PADDED] with one more kept weight of each group inserted."""
    value = tl.load(values_ptr + stored, mask=exists, other=0.0)  # [BLOCK_N, WINDOW]
    place = tl.load(indices_ptr + stored, mask=exists, other=0).to(tl.int32)
    return tl.where(place[:, :, None] == places[None, None, :], value[:, :, None], w)


@triton.jit
def _n_m_rebuild_kernel(
    values_ptr,  # [n, groups, KEPT]
    indices_ptr,  # uint8 [n, groups, KEPT]
    order_ptr,  # int32 [groups * GROUP_SIZE]
    dense_ptr,  # [n, groups * GROUP_SIZE]
    n,
    groups,
    KEPT: tl.constexpr,
    GROUP_SIZE: tl.constexpr,
    PADDED: tl.constexpr,  # GROUP_SIZE rounded up to a power of two
    WINDOW: tl.constexpr,  # groups per program
    HAS_ORDER: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    outputs = tl.program_id(0).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    windows = tl.program_id(1) * WINDOW + tl.arange(0, WINDOW)
    places = tl.arange(0, PADDED)
    stored = (outputs[:, None] * groups + windows[None, :]) * KEPT  # [BLOCK_N, WINDOW]
    exists = (outputs < n)[:, None] & (windows < groups)[None, :]
    w = tl.full([BLOCK_N, WINDOW, PADDED], 0.0, values_ptr.dtype.element_ty)
    if KEPT <= 4:
        for slot in tl.static_range(KEPT):
            w = _with_kept(w, values_ptr, indices_ptr, stored + slot, exists, places)
    else:
        for slot in range(KEPT):
            w = _with_kept(w, values_ptr, indices_ptr, stored + slot, exists, places)
    inputs = windows[:, None] * GROUP_SIZE + places[None, :]  # [WINDOW, PADDED]
    is_input = (windows < groups)[:, None] & (places < GROUP_SIZE)[None, :]
    if HAS_ORDER:
        inputs = tl.load(order_ptr + inputs, mask=is_input, other=0)
    targets = outputs[:, None, None] * (groups * GROUP_SIZE) + inputs[None, :, :]
    tl.store(dense_ptr + targets, w, mask=(outputs < n)[:, None, None] & is_input[None, :, :])


def launch_n_m_rebuild(
    dense: Tensor, *, values: Tensor, indices: Tensor, order: Tensor | None, group_size: int
) -> None:
    """Write the dense weight [N, K]; the other tensors are those of `NMFormat`, on the current device."""
    n, groups, kept_count = values.shape
    padded = power_of_two_within(group_size, lowest=1, highest=64)
    window = INPUTS_AT_A_TIME // padded
    _n_m_rebuild_kernel[(triton.cdiv(n, OUTPUTS_AT_A_TIME), triton.cdiv(groups, window))](
        *(values, indices, indices if order is None else order, dense, n, groups),
        KEPT=kept_count,
        GROUP_SIZE=group_size,
        PADDED=padded,
        WINDOW=window,
        HAS_ORDER=order is not None,
        BLOCK_N=OUTPUTS_AT_A_TIME,
        num_warps=4,
    )
