"""A gathered weight as NM-SpMM's kernels read it."""

from dataclasses import dataclass

import torch
from torch import Tensor

from sparsefront_kernels.gathered.format import GatheredFormat, cut_into_cta_tiles

VECTOR = 32  # outputs that share their inputs: a constant of its kernels
# sparsity -> (inputs of a window, how many of them a vector keeps). Its unpacked kernels load whole windows of 32, the packed
# ones, of windows of 64, the inputs that some vector of the block keeps.
WINDOWS = {0.5: (32, 16), 0.625: (32, 12), 0.75: (64, 16), 0.875: (64, 8)}
PACKED_WINDOW = 64


@dataclass(frozen=True, eq=False)
class NmSpmmPackedWeight:
    """Values, in-window index, and for packed kernels the inputs that a block loads.

    Args:
        n, k: outputs and inputs of the weight.
        window, kept: every vector of 32 outputs keeps `kept` inputs of every `window`.
        values: float32 [K / window · kept, N]: the kept weights of an output, ascending by input, in its column.
        index: int32 [N / tile_n, K / window · kept, tile_n / 32]: for each vector of a block, the place in shared memory of each
            kept input's row: its place in the window, or for packed kernels among the `columns` of the window.
        columns: int32, flat: [N / tile_n, K / window, window] and one window more, which is read ahead; the inputs of a
            window that some vector of the block keeps, ascending, then -1. None for unpacked kernels.
    """

    n: int
    k: int
    window: int
    kept: int
    values: Tensor
    index: Tensor
    columns: Tensor | None


def pack_for_nm_spmm(stored: GatheredFormat, tile_n: int) -> NmSpmmPackedWeight:
    """Lay the weight out for a kernel whose blocks compute `tile_n` outputs (32, 64 or 128), on the format's device.

    Raises:
        ValueError: outputs that `tile_n` does not divide or that are not stored in order, tiles of other than multiples of 32
            outputs, or lists that do not keep as many inputs of every window as its kernels are compiled for.
    """
    (n, k), device = stored.shape, stored.device
    if stored.tile % VECTOR or n % tile_n:
        raise ValueError(
            f"NM-SpMM takes vectors of {VECTOR} outputs and multiples of {tile_n} of them, not {stored.tile} of {n}"
        )
    if not torch.equal(stored.output_index, torch.arange(n, dtype=torch.int32, device=device)):
        raise ValueError("NM-SpMM takes outputs in their own order, none left out")
    _, keeps = cut_into_cta_tiles(stored, VECTOR)  # [N / 32, K]
    window, kept = _window(keeps)
    vectors, windows, together = n // VECTOR, k // window, tile_n // VECTOR
    inputs = keeps.nonzero()[:, 1].view(vectors, -1)  # [N / 32, kept of a vector]
    rows = stored.to_dense().view(vectors, VECTOR, k)
    values = rows.gather(2, inputs[:, None].expand(-1, VECTOR, -1)).view(n, -1).t().contiguous()
    columns = None
    places = torch.arange(window, dtype=torch.int32, device=device).repeat(vectors, windows)  # [N / 32, K], of the rows
    if window == PACKED_WINDOW:
        needed = keeps.view(-1, together, windows, window).any(dim=1)  # [N / tile_n, windows, window]
        places = (needed.cumsum(2, dtype=torch.int32) - 1).view(-1, 1, k).expand(-1, together, -1).reshape(vectors, k)
        columns = _first(needed)
    index = places.gather(1, inputs).view(-1, together, inputs.shape[1]).transpose(1, 2).contiguous()
    return NmSpmmPackedWeight(n, k, window, kept, values, index, columns)


def _window(keeps: Tensor) -> tuple[int, int]:
    """Of `WINDOWS`; ValueError where the lists are not balanced so."""
    vectors, k = keeps.shape
    sparsity = 1 - int(keeps.sum()) / keeps.numel()
    if sparsity not in WINDOWS:
        raise ValueError(
            f"NM-SpMM is compiled for sparsities of {', '.join(map(str, WINDOWS))}, the mask has {sparsity:.6g}"
        )
    window, kept = WINDOWS[sparsity]
    if k % window:
        raise ValueError(f"NM-SpMM takes {kept} of every {window} inputs, which do not divide K = {k}")
    counts = keeps.view(vectors, -1, window).sum(dim=2)
    if (wrong := (counts != kept).nonzero()).numel():
        vector, place = wrong[0].tolist()
        raise ValueError(
            f"NM-SpMM takes {kept} of every {window} inputs; vector {vector} keeps {int(counts[vector, place])} of those "
            f"from {place * window} on"
        )
    return window, kept


def _first(needed: Tensor) -> Tensor:
    """Of each window the places that are needed, ascending, then -1; flat, with a window of -1 behind all."""
    order = (~needed).to(torch.int8).argsort(dim=2, stable=True).to(torch.int32)
    there = torch.arange(needed.shape[2], device=needed.device) < needed.sum(dim=2, keepdim=True)
    columns = order.masked_fill(~there, -1).flatten()
    return torch.cat([columns, columns.new_full((needed.shape[2],), -1)])
