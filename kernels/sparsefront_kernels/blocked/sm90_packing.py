"""Packing for `blocked_sm90`: CTA tiles of two halves of 64 outputs, and k-blocks of 64 inputs that a half keeps."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from sparsefront_kernels.blocked.format import BlockedFormat
from sparsefront_kernels.cuda.wgmma_layout import is_halved, swizzled, whole_panels
from sparsefront_kernels.indices import partners_of

HALF = 64  # outputs per half, as in a tensor core instruction
K_BLOCK = 64  # inputs loaded together
FEWEST_INPUTS = 16  # minimum inputs of a block: K of a tensor core instruction
BOTH = 3  # k-block used by both halves; 1 is half 0, 2 half 1


@dataclass(frozen=True, eq=False)
class BlockedSm90Weight:
    """The packed weight.

    64 outputs form a half, which belongs to one row of blocks. Two halves form a CTA tile: of one row of blocks if these are
    128 outputs high, otherwise of rows that share many blocks. A k-block is 64 inputs kept by half 0, half 1 or both, in
    *boxes* of neighboring inputs; the k-blocks of a CTA tile are ordered along K.

    Args:
        n, k: outputs and inputs of the weight.
        box: inputs per box: 64, 32 or 16.
        panels: [panels, 64, 64] in the weight's dtype: 64 outputs by the 64 inputs of a k-block, swizzled, in k-block order;
            if both halves use a k-block, half 0's panel comes first. For blocks with two of every four inputs: the result
            of `wgmma_layout.halved_panels`.
        k_blocks: int32 [k_blocks, words]: first input of each box, K for an empty box; then 4 * first panel + a bit mask of
            the halves that use it; the number of words is a power of two.
        outputs: int32 [CTA tiles, 2], first output of each half; -1 if there is none.
        lengths: number of k-blocks of each CTA tile, descending.
    """

    n: int
    k: int
    box: int
    panels: Tensor
    k_blocks: Tensor
    outputs: Tensor
    lengths: tuple[int, ...]

    @property
    def halved(self) -> bool:
        """Whether panels have two of every four inputs."""
        return is_halved(self.panels)


def box_of(block_inputs: int) -> int:
    """Inputs per box, for blocks with this many inputs."""
    return math.gcd(block_inputs, K_BLOCK)


def block_unsupported_reason(block: tuple[int, int]) -> str | None:
    """Why halves and boxes cannot be cut from blocks of (outputs, inputs), or None."""
    if block[0] % HALF == 0 and block[1] % FEWEST_INPUTS == 0:
        return None
    return (
        f"takes blocks of a multiple of {HALF} outputs by a multiple of {FEWEST_INPUTS} inputs, not {block[0]}x{block[1]}: "
        "half of a tensor-core instruction's outputs would multiply by zeros"
    )


def pack_for_blocked_sm90(stored: BlockedFormat) -> BlockedSm90Weight:
    """Pack the weight, on the format's device.

    Raises:
        ValueError: `block_unsupported_reason` rejects the block.
    """
    reason = block_unsupported_reason(stored.block)
    if reason:
        raise ValueError(f"blocked: {reason}")
    (n, k), box = stored.shape, box_of(stored.block[1])
    outputs, keeps = _cta_tiles(stored, box)  # [CTA tiles, 2], bool [CTA tiles, 2, K / box]
    tile, uses, boxes = _k_blocks(keeps, K_BLOCK // box)
    count = torch.bincount(tile, minlength=len(outputs))
    order = count.argsort(descending=True, stable=True)
    rank = torch.empty_like(order)
    rank[order] = torch.arange(len(order), device=order.device)
    by_tile = rank[tile].argsort(stable=True)
    tile, uses, boxes = tile[by_tile], uses[by_tile], boxes[by_tile]

    of_halves = torch.stack([uses & 1, uses >> 1], dim=1).bool()  # [k_blocks, 2]
    used = of_halves.sum(dim=1)
    panel_and_uses = 4 * (used.cumsum(0) - used) + uses
    inputs = torch.where(boxes >= 0, boxes * box, k)
    words = torch.cat([inputs, panel_and_uses[:, None]], dim=1)
    owner, half = of_halves.nonzero(as_tuple=True)  # k-block by k-block, half 0 first
    return BlockedSm90Weight(
        n=n,
        k=k,
        box=box,
        panels=_panels(stored.to_dense(), outputs[tile[owner], half], inputs[owner], box),
        k_blocks=pad(words, (0, _words(box) - words.shape[1])).to(torch.int32),
        outputs=outputs[order].to(torch.int32),
        lengths=tuple(count[order].tolist()),
    )


def dense_weight(packed: BlockedSm90Weight) -> Tensor:
    """Unpack W [N, K] without synchronizing."""
    panels, k_blocks, outputs, lengths = packed.panels, packed.k_blocks, packed.outputs, packed.lengths
    n, k = packed.n, packed.k
    device, boxes = panels.device, _boxes(k_blocks.shape[1])
    first_panel, uses = k_blocks[:, boxes] >> 2, k_blocks[:, boxes] & 3
    counts = torch.tensor(list(lengths), dtype=torch.int64, device=device)
    tile = torch.repeat_interleave(torch.arange(len(lengths), device=device), counts, output_size=sum(lengths))
    inputs = _inputs_of(k_blocks[:, :boxes].long(), K_BLOCK // boxes)
    unswizzled = torch.cat([whole_panels(panels), panels.new_zeros(1, HALF, K_BLOCK)])
    dense = panels.new_zeros(n + HALF, k + K_BLOCK)  # padding is written beyond the end
    for half in range(2):
        mine = (uses >> half & 1).bool()
        panel = torch.where(mine, first_panel + half * (uses == BOTH), len(panels)).long()
        first = torch.where(mine, outputs.long()[tile, half], n)
        rows = first[:, None, None] + torch.arange(HALF, device=device)[:, None]
        columns = torch.where(mine[:, None], inputs, k)[:, None, :].expand(-1, HALF, -1)
        dense[rows.expand_as(columns), columns] = unswizzled[panel]
    return dense[:n, :k]


def _words(box: int) -> int:
    """Words of a k-block's entry: one per box plus one, rounded up to a power of two."""
    return 2 * (K_BLOCK // box)


def _boxes(words: int) -> int:
    return words // 2


def _inputs_of(first: Tensor, box: int) -> Tensor:
    """[k_blocks, boxes], the first input of each box, → [k_blocks, 64]."""
    return (first[:, :, None] + torch.arange(box, device=first.device)).flatten(1)


def _cta_tiles(stored: BlockedFormat, box: int) -> tuple[Tensor, Tensor]:
    """The halves of each CTA tile: first outputs, int64 [CTA tiles, 2], and kept boxes, bool [CTA tiles, 2, K / box]."""
    (n, k), (height, width), device = stored.shape, stored.block, stored.device
    keeps = torch.zeros(n // height, k // width, dtype=torch.bool, device=device)
    keeps[stored.block_rows(), stored.block_columns.long()] = True
    keeps = keeps.repeat_interleave(height // HALF, dim=0).repeat_interleave(width // box, dim=1)
    outputs = torch.arange(0, n, HALF, device=device)
    if height % (2 * HALF):
        order = partners_of(keeps)
        outputs, keeps = outputs[order], keeps[order]
    missing = len(outputs) % 2
    return pad(outputs, (0, missing), value=-1).view(-1, 2), pad(keeps, (0, 0, 0, missing)).view(-1, 2, k // box)


def _k_blocks(kept: Tensor, boxes: int) -> tuple[Tensor, Tensor, Tensor]:
    """Group boxes of each CTA tile that are kept by the same halves into k-blocks.

    Args:
        kept: bool [CTA tiles, 2, K / box].
        boxes: per k-block.
    Returns:
        for each k-block, ordered along K within a CTA tile: its CTA tile, the halves that use it, and its boxes, int64
        [k_blocks, boxes], -1 if there are no more.
    """
    columns = kept.shape[2]
    halves = kept[:, 0].long() + 2 * kept[:, 1].long()  # [CTA tiles, K / box]
    tile, column = halves.nonzero(as_tuple=True)
    kind = tile * 4 + halves[tile, column]
    by_kind = kind.argsort(stable=True)  # keeps columns ascending within a kind
    kind, column = kind[by_kind], column[by_kind]
    count = torch.bincount(kind, minlength=4 * len(kept))
    rank = torch.arange(len(kind), device=kept.device) - (count.cumsum(0) - count)[kind]
    groups = -(-count // boxes)
    members = column.new_full((int(groups.sum()), boxes), -1)
    members[(groups.cumsum(0) - groups)[kind] + rank // boxes, rank % boxes] = column
    kinds = torch.repeat_interleave(torch.arange(len(count), device=kept.device), groups)
    # both halves advance along K together, so that rows of X stay in L2
    along_k = (kinds // 4 * columns + members[:, 0]).argsort(stable=True)
    return kinds[along_k] // 4, kinds[along_k] % 4, members[along_k]


def _panels(weight: Tensor, first_outputs: Tensor, inputs: Tensor, box: int) -> Tensor:
    """[panels, 64, 64], swizzled; first_outputs [panels], inputs [panels, boxes] with K for an empty box."""
    n, k = weight.shape
    rows = first_outputs[:, None, None] + torch.arange(HALF, device=weight.device)[:, None]
    columns = _inputs_of(inputs, box)[:, None, :]
    exists = columns < k
    return swizzled(weight[rows, columns.clamp(max=k - 1)] * exists)
