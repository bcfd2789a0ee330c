"""Blocks of fewer than 64 outputs on the gathered Hopper kernel, which unites such tiles: the entry.

A row of blocks is a gathered tile: its outputs keep the same inputs. Narrow blocks alone would leave a tensor-core instruction
half empty; the gathered kernel puts rows that share many inputs into one.
"""

import torch

from sparsefront_kernels.blocked.cuda.packed_weight import HALF
from sparsefront_kernels.blocked.format import BlockedFormat
from sparsefront_kernels.common.device_support import hopper_unsupported_reason
from sparsefront_kernels.format import SparseFormat
from sparsefront_kernels.gathered.cuda import narrow, wide
from sparsefront_kernels.gathered.cuda.entries import gathered_cuda_product
from sparsefront_kernels.gathered.cuda.packed_weight import CudaPackedWeight, pack_for_cuda, tile_unsupported_reason
from sparsefront_kernels.gathered.cuda.tuning import LAUNCHES
from sparsefront_kernels.gathered.format import GatheredFormat
from sparsefront_kernels.kernel_entry import KernelEntry
from sparsefront_kernels.problem import LAYOUTS, Problem

KERNEL = "blocked_gathered_cuda"


def as_tiles(stored: BlockedFormat) -> GatheredFormat:
    """The same weight as gathered tiles, each as high as a block."""
    (height, width), counts = stored.block, stored.row_pointers.diff().long()
    inputs = stored.block_columns[:, None] * width + torch.arange(width, dtype=torch.int32, device=stored.device)
    offsets = torch.zeros(len(counts) + 1, dtype=torch.int64, device=stored.device)
    offsets[1:] = counts.cumsum(0) * width
    return GatheredFormat(
        shape=stored.shape,
        tile=height,
        values=stored.values.transpose(
            1, 2
        ).flatten(),  # of each block a row for each input, as a tile's panel has them
        kept_inputs=inputs.flatten(),
        tile_offsets=offsets,
        output_index=torch.arange(stored.shape[0], dtype=torch.int32, device=stored.device),
    )


def _pack(stored: BlockedFormat) -> CudaPackedWeight:
    return pack_for_cuda(as_tiles(stored))


def _unsupported(stored: SparseFormat, problem: Problem) -> str | None:
    height = stored.block[0]
    if problem.dtype not in (torch.float16, torch.bfloat16):
        return f"takes float16 or bfloat16, not {problem.dtype}"
    if height >= HALF:
        return f"is for blocks of fewer than {HALF} outputs: these fill a tensor-core instruction, see blocked_cuda"
    return (
        tile_unsupported_reason(height)
        or hopper_unsupported_reason(problem, narrow.LIBRARY)
        or hopper_unsupported_reason(problem, wide.LIBRARY)
    )


ENTRY = KernelEntry(
    name=KERNEL,
    family="blocked",
    product=gathered_cuda_product,
    pack=_pack,
    unsupported=_unsupported,
    requires_cuda=True,
    layouts=LAYOUTS,
    fuses_epilogue=True,
    tunable=LAUNCHES,
)
