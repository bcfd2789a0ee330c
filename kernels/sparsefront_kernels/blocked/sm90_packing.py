"""Blocks as `blocked_sm90` reads them: halves of 64 outputs, two to a CTA tile, and k-blocks of 64 inputs that a half keeps."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from sparsefront_kernels.blocked.format import BlockedFormat
from sparsefront_kernels.common.indices import partners_of
from sparsefront_kernels.common.wgmma_layout import is_halved, swizzled, whole_panels

HALF = 64  # outputs of a half: those of one tensor-core instruction
K_BLOCK = 64  # inputs that are loaded together
FEWEST_INPUTS = 16  # of a block: those of one tensor-core instruction
BOTH = 3  # of a k-block that both halves use; 1 is half 0, 2 half 1


@dataclass(frozen=True, eq=False)
class BlockedSm90Weight:
    """What the kernel reads.

    64 outputs form a half, which belongs to one row of blocks. Two halves are a CTA tile: of one row of blocks where these are
    128 outputs high, otherwise of rows that share many blocks. A k-block is 64 inputs that half 0, half 1 or both keep, in
    *boxes* of neighbouring inputs; a CTA tile's k-blocks follow one another along K.

    Args:
        n, k: outputs and inputs of the weight.
        box: inputs of a box: 64, 32 or 16.
        panels: [panels, 64, 64] in the weight's dtype: 64 outputs by the 64 inputs of a k-block, swizzled, k-block after
            k-block; of one that both halves use that of half 0 comes first. Or, where blocks hold two of every four inputs,
            what `common.wgmma_layout.halved_panels` makes of them.
        k_blocks: int32 [k_blocks, words]: the first input of each box, K where a box is left empty; then four times the first
            panel plus which halves use it (bit h for half h); words are a power of two.
        outputs: int32 [CTA tiles, 2], the first of the 64 outputs of each half; -1 where there is none.
        lengths: of each CTA tile the number of k-blocks, most first.
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
        """Whether panels hold two of every four inputs."""
        return is_halved(self.panels)


def box_of(block_inputs: int) -> int:
    """Inputs that are loaded in one piece, for blocks of this many inputs."""
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
    """Lay the weight out for the kernel on the format's device.

    Raises:
        ValueError: a block that `block_unsupported_reason` rejects.
    """
    if reason := block_unsupported_reason(stored.block):
        raise ValueError(f"blocked: {reason}")
    (n, k), box = stored.shape, box_of(stored.block[1])
    outputs, kept = _cta_tiles(stored, box)  # [CTA tiles, 2], bool [CTA tiles, 2, K / box]
    tile, uses, boxes = _k_blocks(kept, K_BLOCK // box)
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
    """W [N, K], without a look at the contents of tensors from the host."""
    panels, k_blocks, outputs, lengths = packed.panels, packed.k_blocks, packed.outputs, packed.lengths
    n, k = packed.n, packed.k
    device, boxes = panels.device, _boxes(k_blocks.shape[1])
    first_panel, uses = k_blocks[:, boxes] >> 2, k_blocks[:, boxes] & 3
    counts = torch.tensor(list(lengths), dtype=torch.int64, device=device)
    tile = torch.repeat_interleave(torch.arange(len(lengths), device=device), counts, output_size=sum(lengths))
    inputs = _inputs_of(k_blocks[:, :boxes].long(), K_BLOCK // boxes)
    unswizzled = torch.cat([whole_panels(panels), panels.new_zeros(1, HALF, K_BLOCK)])
    dense = panels.new_zeros(n + HALF, k + K_BLOCK)  # what belongs to no output or input goes beyond the end
    for half in range(2):
        mine = (uses >> half & 1).bool()
        panel = torch.where(mine, first_panel + half * (uses == BOTH), len(panels)).long()
        first = torch.where(mine, outputs.long()[tile, half], n)
        rows = first[:, None, None] + torch.arange(HALF, device=device)[:, None]
        columns = torch.where(mine[:, None], inputs, k)[:, None, :].expand(-1, HALF, -1)
        dense[rows.expand_as(columns), columns] = unswizzled[panel]
    return dense[:n, :k]


def _words(box: int) -> int:
    """Of a k-block's entry: one for each box and one more, as a power of two."""
    return 2 * (K_BLOCK // box)


def _boxes(words: int) -> int:
    return words // 2


def _inputs_of(first: Tensor, box: int) -> Tensor:
    """[k_blocks, boxes], the first input of each box, → [k_blocks, 64]."""
    return (first[:, :, None] + torch.arange(box, device=first.device)).flatten(1)


def _cta_tiles(stored: BlockedFormat, box: int) -> tuple[Tensor, Tensor]:
    """The halves of each CTA tile: first outputs, int64 [CTA tiles, 2], and boxes kept, bool [CTA tiles, 2, K / box]."""
    (n, k), (height, width), device = stored.shape, stored.block, stored.device
    kept = torch.zeros(n // height, k // width, dtype=torch.bool, device=device)
    kept[stored.block_rows(), stored.block_columns.long()] = True
    kept = kept.repeat_interleave(height // HALF, dim=0).repeat_interleave(width // box, dim=1)
    outputs = torch.arange(0, n, HALF, device=device)
    if height % (2 * HALF):
        order = partners_of(kept)
        outputs, kept = outputs[order], kept[order]
    missing = len(outputs) % 2
    return pad(outputs, (0, missing), value=-1).view(-1, 2), pad(kept, (0, 0, 0, missing)).view(-1, 2, k // box)


def _k_blocks(kept: Tensor, boxes: int) -> tuple[Tensor, Tensor, Tensor]:
    """Boxes of each CTA tile that the same halves keep, so many to a k-block.

    Args:
        kept: bool [CTA tiles, 2, K / box].
    Returns:
        for each k-block, those of a CTA tile along K: its CTA tile, which halves use it, and its boxes int64 [k_blocks, boxes],
        -1 where there are no more.
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
    # both halves walk up along K together: rows of X stay in L2
    along_k = (kinds // 4 * columns + members[:, 0]).argsort(stable=True)
    return kinds[along_k] // 4, kinds[along_k] % 4, members[along_k]


def _panels(weight: Tensor, first_outputs: Tensor, inputs: Tensor, box: int) -> Tensor:
    """[panels, 64, 64], swizzled; first_outputs [panels], inputs [panels, boxes] where K stands for an empty box."""
    n, k = weight.shape
    rows = first_outputs[:, None, None] + torch.arange(HALF, device=weight.device)[:, None]
    columns = _inputs_of(inputs, box)[:, None, :]
    exists = columns < k
    return swizzled(weight[rows, columns.clamp(max=k - 1)] * exists)
