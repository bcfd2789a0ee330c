"""How the tensor cores of compute capability 9.0 read an operand from shared memory."""

import torch
from torch import Tensor

CHUNK = 8  # elements of 16 bits, which stay together
LINE = 64  # elements of 128 bytes: all banks of shared memory


def swizzled(panels: Tensor) -> Tensor:
    """Rows as the swizzle of as many bytes has them, or back; elements of 16 bits.

    Rows of 64 elements: chunk c of eight lies at place c ^ (row % 8). Rows of 32, two to a line of 128 bytes: c ^ (row // 2 % 4).

    Args:
        panels: [..., rows, 64 or 32], rows a multiple of 8.
    """
    columns = panels.shape[-1]
    row, chunk = torch.arange(8, device=panels.device)[:, None], torch.arange(columns // CHUNK, device=panels.device)
    eights = panels.reshape(-1, 8, columns // CHUNK, CHUNK)  # [eights of rows, row % 8, chunk, 8]
    return eights[:, row, chunk ^ (row // (LINE // columns))].view(panels.shape)
