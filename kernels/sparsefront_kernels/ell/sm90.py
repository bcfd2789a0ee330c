"""`ell_sm90`: products with any number of rows of X on CUDA cores, in which a thread owns rows of X (csrc/ell_sm90.cu)."""

import torch

from sparsefront_kernels.cuda.thread_per_row import ThreadPerRowWeight, packed_lists, thread_per_row_entry
from sparsefront_kernels.ell.format import ELLFormat


def pack_for_sm90(stored: ELLFormat) -> ThreadPerRowWeight:
    """Pack the weight, on the format's device.

    A block row is a group of outputs that keep the same inputs; their lists have equal length and need no sorting.
    """
    b, device = stored.block, stored.device
    rows, count = stored.columns.shape
    inputs = (stored.columns.long() * b)[:, :, None] + torch.arange(b, device=device)  # [N / b, count, b]
    group = torch.arange(rows, device=device).repeat_interleave(count * b)
    values = stored.values.transpose(2, 3).reshape(-1, b)  # per input, all outputs of the block row
    return packed_lists(group, inputs.flatten(), values, shape=stored.shape, by_length=False)


ENTRY = thread_per_row_entry("ell", kernel="ell_sm90", version=3, pack=pack_for_sm90)
