"""The gathered weight laid out for the float32 kernel of narrow tiles: 16 lists to a block, windows of inputs, steps."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from sparsefront_kernels.gathered.format import GatheredFormat, cut_into_cta_tiles

LIST_OUTPUTS, LISTS = 8, 16  # outputs that share a list; lists of a block of the grid
WIDTH = LIST_OUTPUTS * LISTS
WIDEST_TILE = 16  # from 32 outputs on, gathered_simt reads no row for nothing
HALF = 32  # inputs of half a window
OCTET = 8  # steps that the kernel takes at a time
MOST_STEPS = 32  # of a stage: a window in which a list keeps more is two stages
HEADER = 16  # bytes before the places of a stage


@dataclass(frozen=True, eq=False)
class IndexedPackedWeight:
    """What the kernel reads.

    A stage is a window of 64 inputs, or half of one, for the 16 lists of a tile of 128 outputs: the inputs that some list
    keeps, its rows, and as many steps as the longest list keeps of them, up to the next multiple of 8. A step is one kept
    input of every list. Lists that keep fewer take row 0 with weights of zero for the rest.

    A tile's outputs are ordered as the threads of a warp own them, so that a thread's 8 are one list: of list l, output r is
    in place l // 4 · 32 + r // 4 · 16 + l % 4 · 4 + r % 4.

    Args:
        n, k: outputs and inputs of the weight.
        panels: float32 [steps of all stages, 128]: weights, of each output for the input that its list has in that step.
        kept: int32 [rows of all stages], ascending within a stage.
        starts: int32 [stages + 1, 2]: first row, first step.
        places: uint8, flat; of each stage 16 bytes whose first is its steps / 8, then [steps / 8, 16 lists, 8]: which of its
            rows a list takes in a step.
        tiles: int32 [tiles, 2]: first stage and number of them; most steps first.
        outputs: int32 [tiles, 128]; -1 where a tile is not full. Every output of the weight is in one tile.
        most_steps: of any stage, a multiple of 8.
    """

    n: int
    k: int
    panels: Tensor
    kept: Tensor
    starts: Tensor
    places: Tensor
    tiles: Tensor
    outputs: Tensor
    most_steps: int


def tile_unsupported_reason(tile: int) -> str | None:
    """Why the kernel does not take tiles of this width, or None."""
    if tile <= WIDEST_TILE and WIDEST_TILE % tile == 0:
        return None
    return f"takes tiles of 1, 2, 4, 8 or 16 outputs, not of {tile}"


def pack_for_indexed(stored: GatheredFormat) -> IndexedPackedWeight:
    """Lay the weight out for the kernel on the format's device.

    Raises:
        ValueError: a tile width that `tile_unsupported_reason` rejects.
    """
    if reason := tile_unsupported_reason(stored.tile):
        raise ValueError(f"gathered: {reason}")
    outputs, keeps = cut_into_cta_tiles(stored, LIST_OUTPUTS)
    (n, k), device = stored.shape, stored.device
    alike = keeps.sum(dim=1).argsort(descending=True, stable=True)  # a stage is as long as the longest list of its tile
    outputs, keeps = outputs[alike], keeps[alike]
    outputs = pad(outputs, (0, 0, 0, -len(outputs) % LISTS), value=-1).view(-1, LISTS, LIST_OUTPUTS)
    keeps = pad(keeps, (0, -k % (2 * HALF), 0, -len(keeps) % LISTS)).view(len(outputs), LISTS, -1, 2, HALF)
    windows = _Windows(keeps)
    order = windows.steps.flatten(1).sum(dim=1).argsort(descending=True, stable=True)
    outputs, windows = outputs[order], _Windows(keeps[order])
    stages, starts = windows.stages(), windows.starts()
    first_step = starts[:-1, 1].long()
    tile, list_, window, half, place = windows.keeps.nonzero(as_tuple=True)
    stage, rank = stages[tile, window, half], windows.ranks[tile, list_, window, half, place]
    own, inputs = outputs[tile, list_].long(), (window * 2 + half) * HALF + place
    values = stored.to_dense()[own.clamp(min=0), inputs[:, None]]
    panels = values.new_zeros(int(starts[-1, 1]), WIDTH)
    panels[(first_step[stage] + rank)[:, None], _slots(device)[list_]] = values.masked_fill(own < 0, 0)
    begins = (torch.arange(len(first_step), device=device) + first_step) * HEADER
    places = torch.zeros(HEADER * (len(first_step) + len(panels)), dtype=torch.uint8, device=device)
    places[begins] = (starts[:, 1].diff() // OCTET).to(torch.uint8)
    at = begins[stage] + HEADER + rank // OCTET * (LISTS * OCTET) + list_ * OCTET + rank % OCTET
    places[at] = windows.rows_of(tile, window, half, place).to(torch.uint8)
    _, window, half, place = windows.needed.nonzero(as_tuple=True)
    counts = (windows.steps > 0).flatten(1).sum(dim=1)
    in_slots = torch.empty_like(outputs.view(-1, WIDTH))
    in_slots[:, _slots(device).flatten()] = outputs.view(-1, WIDTH)
    return IndexedPackedWeight(
        n=n,
        k=k,
        panels=panels,
        kept=((window * 2 + half) * HALF + place).to(torch.int32),
        starts=starts,
        places=places,
        tiles=torch.stack([counts.cumsum(0) - counts, counts], dim=1).to(torch.int32),
        outputs=in_slots,
        most_steps=max(OCTET, int(windows.steps.max())) if windows.steps.numel() else OCTET,
    )


def dense_weight(
    panels: Tensor, kept: Tensor, starts: Tensor, places: Tensor, tiles: Tensor, outputs: Tensor, n: int, k: int
) -> Tensor:
    """W [N, K] from tensors of `IndexedPackedWeight`, without a look at their contents from the host."""
    device = panels.device
    step = torch.arange(panels.shape[0], device=device, dtype=starts.dtype)
    stage = torch.searchsorted(starts[:, 1].contiguous(), step, right=True) - 1
    first_row, first_step = starts.long()[stage].unbind(dim=1)
    rank = step - first_step
    at = (stage + first_step) * HEADER + HEADER + rank // OCTET * (LISTS * OCTET) + rank % OCTET
    own = places[at[:, None] + torch.arange(LISTS, device=device) * OCTET]  # [steps, lists]
    inputs = kept[first_row[:, None] + own].long()
    tile = torch.searchsorted(tiles[:, 0].contiguous(), stage.to(tiles.dtype), right=True) - 1
    list_of_slot = torch.empty(WIDTH, dtype=torch.int64, device=device)
    list_of_slot[_slots(device)] = torch.arange(LISTS, device=device)[:, None].expand(-1, LIST_OUTPUTS)
    dense = panels.new_zeros(n + 1, k)  # what belongs to output -1 goes to the last row
    # lists that are shorter than their stage add zeros to what they hold of row 0
    return dense.index_put((outputs.long()[tile], inputs[:, list_of_slot]), panels, accumulate=True)[:n]


class _Windows:
    """Windows of a mask, and which of their halves are stages of their own.

    keeps: bool [tiles, lists, windows, 2, 32]; needed: bool [tiles, windows, 2, 32], the inputs that some list keeps;
    split: bool [tiles, windows], whether the halves are two stages; steps: int64 [tiles, windows, 2], of the stage that
    begins there, 0 where none does.
    """

    def __init__(self, keeps: Tensor) -> None:
        self.keeps, self.needed = keeps, keeps.any(dim=1)
        counts = keeps.sum(dim=4)  # [tiles, lists, windows, 2]
        self.split = counts.sum(dim=3).amax(dim=1) > MOST_STEPS
        longest = self._of_stages(counts, self.split[:, None]).amax(dim=1)
        self.steps = -(-longest // OCTET) * OCTET
        self.ranks = self._within_stages(keeps, self.split[:, None])
        self._rows = self._within_stages(self.needed, self.split)

    def stages(self) -> Tensor:
        """int64 [tiles, windows, 2]: the stage that half a window belongs to."""
        begins = self.steps > 0
        number = begins.flatten().cumsum(0).view_as(self.steps) - 1
        number[..., 1] = torch.where(self.split, number[..., 1], number[..., 0])
        return number

    def starts(self) -> Tensor:
        """int32 [stages + 1, 2]: first row and first step."""
        begins = self.steps > 0
        rows = self._of_stages(self.needed.sum(dim=3), self.split)
        counts = torch.stack([rows[begins], self.steps[begins]], dim=1)
        return pad(counts.cumsum(0), (0, 0, 1, 0)).to(torch.int32)

    def rows_of(self, *index: Tensor) -> Tensor:
        """Of inputs (tile, window, half, place): which row of their stage they are."""
        return self._rows[index]

    @staticmethod
    def _of_stages(counts: Tensor, split: Tensor) -> Tensor:
        """[..., windows, 2] of halves → of the stages that begin there."""
        first, second = counts.unbind(dim=-1)
        return torch.stack([first + second * ~split, second * split], dim=-1)

    @staticmethod
    def _within_stages(chosen: Tensor, split: Tensor) -> Tensor:
        """bool [..., windows, 2, 32] → how many chosen inputs of the stage come before each."""
        before = chosen.flatten(-2).cumsum(-1).view(chosen.shape) - 1
        before[..., 1, :] -= (chosen[..., 0, :].sum(dim=-1) * split)[..., None]
        return before


def _slots(device: torch.device) -> Tensor:
    """int64 [lists, outputs of a list]: where in a tile an output is."""
    list_, output = torch.arange(LISTS, device=device)[:, None], torch.arange(LIST_OUTPUTS, device=device)
    return list_ // 4 * 32 + output // 4 * 16 + list_ % 4 * 4 + output % 4
