"""`n_m_sm90`: products with any number of rows of X on CUDA cores; a thread owns rows of X (csrc/n_m_sm90.cu)."""

import torch

from sparsefront_kernels.cuda.thread_per_row import ThreadPerRowWeight, packed_lists, thread_per_row_entry
from sparsefront_kernels.n_m.format import NMFormat


def pack_for_sm90(stored: NMFormat) -> ThreadPerRowWeight:
    """Lay the weight out for the kernel on the format's device.

    Indices within groups become inputs of X, those of a permuted weight by its order, so that X is read as it lies. Lists come in
    order, since all outputs keep equally many.
    """
    (n, k), device = stored.shape, stored.device
    groups = torch.arange(k // stored.m, device=device)[:, None]
    inputs, values = (groups * stored.m + stored.indices.long()).view(n, -1), stored.values.reshape(n, -1)
    if stored.input_order is not None:
        inputs, ascending = stored.input_order.long()[inputs].sort(dim=1)
        values = values.gather(1, ascending)
    output = torch.arange(n, device=device).repeat_interleave(inputs.shape[1])
    return packed_lists(output, inputs.flatten(), values.reshape(-1, 1), shape=stored.shape, by_length=False)


ENTRY = thread_per_row_entry("n_m", kernel="n_m_sm90", version=3, pack=pack_for_sm90)
