"""`blocked_gathered_sm90`: run blocks with fewer than 64 outputs, or few rows of X, on the kernel of the gathered family.

A row of blocks is a gathered tile, because its outputs keep the same inputs. Low blocks alone would leave a tensor core
instruction half empty; the gathered kernel combines rows that share many inputs.
"""

from dataclasses import replace
from typing import Any

import torch

from sparsefront_kernels.blocked.format import BlockedFormat
from sparsefront_kernels.blocked.sm90_packing import HALF
from sparsefront_kernels.format import SparseFormat
from sparsefront_kernels.gathered.format import GatheredFormat
from sparsefront_kernels.gathered.sm90 import ENTRY as GATHERED_SM90
from sparsefront_kernels.gathered.sm90 import sm90_unsupported_reason
from sparsefront_kernels.gathered.sm90_packing import tile_unsupported_reason
from sparsefront_kernels.problem import Problem

# Rows of X up to which high blocks may use it too, decided by timing. With blocks of 128 and 64 at 50 % it takes 0.90 to 1.04
# of `blocked_sm90`'s time at 256 rows on weights from 4096 x 4096 up, at 1024 rows 1.05 and more except for one product (0.97),
# and at 4096 rows it never wins (H200, experiments/operators/h200.csv).
MOST_ROWS_OF_HIGH_BLOCKS = 1024


def gathered_tiles(stored: BlockedFormat) -> GatheredFormat:
    """The same weight as gathered tiles, one per block row."""
    (height, width), counts = stored.block, stored.row_pointers.diff().long()
    inputs = stored.block_columns[:, None] * width + torch.arange(width, dtype=torch.int32, device=stored.device)
    offsets = torch.zeros(len(counts) + 1, dtype=torch.int64, device=stored.device)
    offsets[1:] = counts.cumsum(0) * width
    return GatheredFormat(
        shape=stored.shape,
        tile=height,
        values=stored.values.transpose(1, 2).flatten(),  # input-major within a block, as in a tile's panel
        kept_inputs=inputs.flatten(),
        tile_offsets=offsets,
        output_index=torch.arange(stored.shape[0], dtype=torch.int32, device=stored.device),
    )


def _pack(stored: BlockedFormat) -> Any:
    return GATHERED_SM90.pack(gathered_tiles(stored))


def _unsupported(stored: SparseFormat, problem: Problem) -> str | None:
    height = stored.block[0]
    reason = tile_unsupported_reason(height)
    if height >= HALF and problem.m > MOST_ROWS_OF_HIGH_BLOCKS:
        reason = (
            f"is for blocks of fewer than {HALF} outputs or up to {MOST_ROWS_OF_HIGH_BLOCKS} rows: these fill a tensor-core "
            f"instruction, see blocked_sm90"
        )
    return sm90_unsupported_reason(problem, reason)


ENTRY = replace(GATHERED_SM90, name="blocked_gathered_sm90", family="blocked", pack=_pack, unsupported=_unsupported)
