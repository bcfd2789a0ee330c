"""The gathered weight laid out for few rows of X: panels packed as the tensor cores' lanes hold them."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from sparsefront_kernels.gathered.format import GatheredFormat

CHUNK = 16  # kept inputs of one tensor-core product
FRAGMENT = 16  # outputs of one
WIDTHS = (128, 64, 32, 16)  # outputs of a row tile
DTYPES = (torch.float16, torch.bfloat16, torch.float32)
MOST_INPUTS = 65_535  # lists are of 16 bits, and the last number stands for no input


@dataclass(frozen=True, eq=False)
class SmallMPackedWeight:
    """What the kernel for few rows reads.

    A row tile is a tile, a part of a wide one (which then repeats the tile's list), or several tiles narrower than 16,
    whose lists are united and whose weights are zero where a tile does not keep an input. A row tile's kept inputs come in
    chunks of 16.

    Args:
        n, k: outputs and inputs of the weight.
        width: outputs of a row tile, one of `WIDTHS`.
        panels: [chunks, 16 * width] in the weight's dtype, row tile by row tile: fragments of 16 inputs × 16 outputs, 8
            elements to each of 32 lanes. Lane 4r + q holds, of outputs r and r + 8, the items q, 4 + q, 8 + q and 12 + q
            of the chunk's list, in the order of the left operand of mma.m16n8k16, or, in two runs of 4 elements a lane,
            of two mma.m16n8k8 for float32.
        lists: int16 [chunks, 16], to be read as unsigned: the inputs of a chunk, 0xFFFF where the list has ended; place
            4q + i holds item 4i + q.
        row_tiles: int32 [row_tiles, 2]: first chunk and number of chunks; most chunks first, so that long row tiles do not start
            last. Outputs that no tile stores form row tiles without chunks, so that each element of Y has one writer.
        outputs: int32 [row_tiles, width]; -1 where a row tile is not full.
        chunks_of_each: the number of chunks where it is the same for all row tiles, which then lie one after the other;
            else -1.
        most_chunks: of any row tile.
        in_order: whether `outputs` simply counts up to n.
    """

    n: int
    k: int
    width: int
    panels: Tensor
    lists: Tensor
    row_tiles: Tensor
    outputs: Tensor
    chunks_of_each: int
    most_chunks: int
    in_order: bool


def pack_for_small_m(stored: GatheredFormat) -> SmallMPackedWeight:
    """Lay the weight out for the kernel on the format's device.

    Args:
        stored: float16, bfloat16 or float32, of at most `MOST_INPUTS` inputs.
    Raises:
        ValueError: another dtype, or more inputs.
    """
    (n, k), device = stored.shape, stored.device
    if reason := dtype_unsupported_reason(stored.dtype) or inputs_unsupported_reason(k):
        raise ValueError(f"gathered: {reason}")
    outputs, kept = _row_tiles(stored)
    width = outputs.shape[1]
    count = -(-kept.sum(dim=1) // CHUNK)  # chunks of a row tile
    order = count.argsort(descending=True, stable=True)
    outputs, kept, count = outputs[order], kept[order], count[order]
    first = count.cumsum(0) - count
    row_tile, inputs = kept.nonzero(as_tuple=True)
    kept_each = torch.bincount(row_tile, minlength=len(kept))
    rank = torch.arange(len(row_tile), device=device) - (kept_each.cumsum(0) - kept_each)[row_tile]
    lists = torch.full((int(count.sum()), CHUNK), -1, dtype=torch.int64, device=device)
    lists[first[row_tile] + rank // CHUNK, rank % CHUNK] = inputs
    owner = torch.repeat_interleave(torch.arange(len(count), device=device), count)
    flat = outputs.flatten()
    counted = torch.arange(flat.numel(), dtype=torch.int32, device=device)
    return SmallMPackedWeight(
        n=n,
        k=k,
        width=width,
        panels=_panels(stored.to_dense(), outputs[owner], lists),
        lists=lists.view(-1, 4, 4).transpose(1, 2).reshape(-1, CHUNK).to(torch.int16),
        row_tiles=torch.stack([first, count], dim=1).to(torch.int32),
        outputs=outputs,
        chunks_of_each=int(count[0]) if len(count) and bool((count == count[0]).all()) else -1,
        most_chunks=int(count[0]) if len(count) else 0,
        in_order=torch.equal(flat, torch.where(counted < n, counted, -1)),
    )


def dense_weight(panels: Tensor, lists: Tensor, row_tiles: Tensor, outputs: Tensor, n: int, k: int) -> Tensor:
    """W [N, K] from tensors of `SmallMPackedWeight`, without a look at their contents from the host."""
    chunks, device = panels.shape[0], panels.device
    chunk = torch.arange(chunks, device=device, dtype=row_tiles.dtype)
    # row tiles without chunks come last
    owner = torch.searchsorted(row_tiles[:, 0].contiguous(), chunk, right=True) - 1
    width = outputs.shape[1]
    if panels.dtype == torch.float32:
        parts = panels.view(chunks, width // FRAGMENT, 2, 8, 4, 2, 2).permute(0, 2, 5, 4, 1, 6, 3)
    else:
        parts = panels.view(chunks, width // FRAGMENT, 8, 4, 2, 2, 2).permute(0, 4, 6, 3, 1, 5, 2)
    weights = parts.reshape(chunks, CHUNK, width)  # item, output
    inputs = lists.view(chunks, 4, 4).transpose(1, 2).reshape(chunks, CHUNK).long()
    inputs = torch.where(inputs == -1, k, inputs & 0xFFFF)
    dense = panels.new_zeros(n + 1, k + 1)  # what belongs to no output or input goes to the last row or column
    dense[outputs.long()[owner][:, None, :], inputs[:, :, None]] = weights
    return dense[:n, :k]


def dtype_unsupported_reason(dtype: torch.dtype) -> str | None:
    """Why weights of this type cannot be laid out, or None."""
    return None if dtype in DTYPES else f"takes float16, bfloat16 or float32, not {dtype}"


def inputs_unsupported_reason(k: int) -> str | None:
    """Why lists cannot hold the numbers of so many inputs, or None."""
    return None if k <= MOST_INPUTS else f"takes up to {MOST_INPUTS} inputs, not {k}"


def row_tile_width(tile: int) -> int:
    """The widest of `WIDTHS` that stores a tile with the least padding."""
    return min(WIDTHS, key=lambda width: (-(-tile // width) * width, -width))


def _row_tiles(stored: GatheredFormat) -> tuple[Tensor, Tensor]:
    """Outputs, int32 [row_tiles, width] with -1 where not full, and the inputs they keep, bool [row_tiles, K]."""
    (n, k), tile, device = stored.shape, stored.tile, stored.device
    width = row_tile_width(tile)
    kept = torch.zeros(stored.tiles, k, dtype=torch.bool, device=device)
    tile_of = torch.repeat_interleave(torch.arange(stored.tiles, device=device), stored.tile_offsets.diff())
    kept[tile_of, stored.kept_inputs.long()] = True
    together = max(1, FRAGMENT // tile)  # tiles narrower than a fragment are united
    outputs = _in_rows(stored.output_index, tile * together)
    outputs = pad(outputs, (0, -outputs.shape[1] % width), value=-1)
    parts = outputs.shape[1] // width  # of a wide tile
    kept = pad(kept, (0, 0, 0, -len(kept) % together)).view(-1, together, k).any(dim=1)
    outputs, kept = outputs.view(-1, width), kept.repeat_interleave(parts, dim=0)
    held = (outputs >= 0).any(dim=1)  # the last tile may be too narrow for its last parts
    owned = torch.zeros(n, dtype=torch.bool, device=device)
    owned[stored.output_index.long()] = True
    dropped = _in_rows((~owned).nonzero().flatten().to(torch.int32), width)
    return torch.cat([outputs[held], dropped]), pad(kept[held], (0, 0, 0, len(dropped)))


def _panels(weight: Tensor, outputs: Tensor, lists: Tensor) -> Tensor:
    """[chunks, 16 * width] from weight [N, K], outputs [chunks, width] and lists [chunks, 16]."""
    chunks, width = outputs.shape
    wanted = (outputs >= 0)[:, None, :] & (lists >= 0)[:, :, None]
    panels = torch.where(wanted, weight[outputs.clamp(min=0).long()[:, None, :], lists.clamp(min=0)[:, :, None]], 0)
    # item 8a + 4b + q of the list, output 16f + 8h + r
    parts = panels.view(chunks, 2, 2, 4, width // FRAGMENT, 2, 8)  # a, b, q, f, h, r
    if weight.dtype == torch.float32:
        fragments = parts.permute(0, 4, 1, 6, 3, 2, 5)  # f, a, lane 4r + q, element 2b + h
    else:
        fragments = parts.permute(0, 4, 6, 3, 1, 5, 2)  # f, lane 4r + q, element 4a + 2h + b
    return fragments.reshape(chunks, CHUNK * width)


def _in_rows(index: Tensor, length: int) -> Tensor:
    """[ceil(len / length), length], filled up with -1."""
    return pad(index, (0, -index.numel() % length), value=-1).view(-1, length)
