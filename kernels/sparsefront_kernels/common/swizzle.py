"""How the tensor cores of compute capability 9.0 read an operand from shared memory."""

import torch
from torch import Tensor

CHUNK = 8  # elements of 16 bits, which stay together
ROW = 64  # elements: rows of 128 bytes


def swizzled(panels: Tensor) -> Tensor:
    """Rows of 64 elements of 16 bits as the 128-byte swizzle has them: chunk c of eight at place c ^ (row % 8); or back.

    Args:
        panels: [..., rows, 64], rows a multiple of 8.
    """
    row, chunk = torch.arange(8, device=panels.device)[:, None], torch.arange(ROW // CHUNK, device=panels.device)
    eights = panels.reshape(-1, 8, ROW // CHUNK, CHUNK)  # [eights of rows, row % 8, chunk, 8]
    return eights[:, row, chunk ^ row].view(panels.shape)
