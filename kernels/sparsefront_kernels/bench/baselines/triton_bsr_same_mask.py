"""PyTorch's Triton kernel for block-sparse rows on the weight that our kernels multiply by, whatever its blocks and rows."""

import torch

from sparsefront_kernels.bench.baselines.triton_bsr import LAYOUT, makers, stored_bytes
from sparsefront_kernels.bench.copies import numbered
from sparsefront_kernels.bench.drawn import DrawnWeight
from sparsefront_kernels.bench.provider import Provider
from sparsefront_kernels.bench.setting import Setting
from sparsefront_kernels.blocked.format import BlockedFormat

KERNEL = "triton_bsr_same_mask"
FAMILY = "blocked"  # what it multiplies by


def providers(setting: Setting, drawn: DrawnWeight) -> list[Provider]:
    """Every launch worth timing.

    X is padded beforehand to an M that it takes; the padding is not in its time.
    """
    stored = drawn.stored[FAMILY]
    assert isinstance(stored, BlockedFormat)
    # 64-bit indices, as PyTorch's own conversion makes them
    pointers, columns = stored.row_pointers.long(), stored.block_columns.long()
    copies = numbered(torch.sparse_bsr_tensor(pointers, columns, stored.values, stored.shape))
    weight_bytes = stored_bytes(copies(0))
    return [
        Provider(
            family=FAMILY,
            kernel=KERNEL,
            pattern=drawn.pattern,
            granularity=drawn.granularity,
            distribution=drawn.distribution,
            mask_settings=drawn.mask_settings,
            dtype_name=setting.dtype_name,
            layout=LAYOUT,
            sparsity=drawn.sparsity,
            operand_bytes=weight_bytes + setting.activation_bytes,
            weight_bytes=weight_bytes,
            make=make,
            reference=drawn.reference,
        )
        for make in makers(setting, copies, stored.block[0])
    ]
