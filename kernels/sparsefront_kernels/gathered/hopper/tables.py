"""The gathered weight laid out for the Hopper kernel: pairs of half tiles, rows of X in granules, swizzled panels."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from sparsefront_kernels.gathered.format import GatheredFormat

HALF = 64  # outputs of a half tile: those of one tensor-core instruction
GRANULE = 16  # kept inputs of one tensor-core instruction
STEP_GRANULES = 4  # granules that are loaded together
STEP = GRANULE * STEP_GRANULES  # kept inputs that are loaded together
RUN = 8  # outputs that stay neighbours: a row-major Y is written in runs of 16 bytes


@dataclass(frozen=True, eq=False)
class PairTables:
    """What the Hopper kernel reads.

    64 outputs form a half tile: a piece of a wide tile, or several narrow tiles, whose lists are united and whose panels
    hold zeros where a tile does not keep an input; tiles that share many inputs are put together. Two half tiles are a
    pair, which one block of the grid computes. Each input of a pair is kept by half 0, by half 1 or by both. Inputs of one
    kind are grouped by 16 into granules, and the granules of a pair, sorted by their first input, are loaded four at a
    time.

    Args:
        n, k: outputs and inputs of the weight.
        panels: [granules of half tiles, 16, 64] in the weight's dtype. Of a row's eight chunks of eight outputs, chunk
            c lies at place c ^ (row % 8), as the tensor cores' 128-byte swizzle has it. A pair's granules of half 0
            come first, then those of half 1.
        steps: int32 [steps, 68]: the 64 inputs of a step, -1 where a granule is not full; then which half keeps which
            granule (bit g is set where half 0 keeps granule g, bit 4 + g where half 1 does); then where in `panels` its
            granules of half 0 and of half 1 begin; then padding.
        pairs: int32 [pairs, 2]: first step and number of steps, at least 1; most steps first, so that long pairs do not
            start last.
        steps_of_each: where all pairs have equally many steps, or some one more, how many; else 0. Pairs begin one after
            the other, and so where each begins need not be looked up.
        outputs: int32 [pairs, 128]; -1 where a half tile is not full.
        whole_runs: whether each eight of `outputs` from a multiple of eight on are eight neighbours, of which the first is
            a multiple of 8, or eight times -1. Rows of a row-major Y can then be written 16 bytes at a time.
        lengths: of each pair the steps that hold any input; as in `pairs`, but 0 where all outputs are pruned.
        compact: int32 [pairs that keep inputs, 128], `outputs` with the places in this table instead, where only what is
            computed is written, side by side.
        place: int32 [N], where each output is in `compact`, or -1.
    """

    n: int
    k: int
    panels: Tensor
    steps: Tensor
    pairs: Tensor
    outputs: Tensor
    steps_of_each: int
    whole_runs: bool
    lengths: tuple[int, ...]
    compact: Tensor
    place: Tensor


@dataclass(frozen=True, eq=False)
class _Granules:
    """All granules, pair by pair in the order of loading.

    Args:
        pair, place: of each granule, and its place among those of its pair.
        halves: 1, 2 or 3: bit h is set where half h keeps it.
        inputs: [granules, 16], -1 where not full.
    """

    pair: Tensor
    place: Tensor
    halves: Tensor
    inputs: Tensor


def tile_refusal(tile: int) -> str | None:
    """Why half tiles cannot be cut from tiles of this width, or None."""
    if tile % HALF == 0 or HALF % tile == 0:
        return None
    return f"takes tiles that divide {HALF} or are multiples of it, not tiles of {tile} outputs"


def pair_tables(stored: GatheredFormat) -> PairTables:
    """Lay the weight out for the kernel on the format's device.

    Raises:
        ValueError: a tile width that `tile_refusal` refuses.
    """
    if reason := tile_refusal(stored.tile):
        raise ValueError(f"gathered: {reason}")
    outputs, kept = _half_tiles(stored)
    outputs, kept = outputs.view(-1, 2 * HALF), kept.view(-1, 2, kept.shape[1])
    granules = _granules(kept, mixed=stored.tile < HALF)
    count = torch.bincount(granules.pair, minlength=len(outputs))  # granules per pair
    lengths = (-(-count // STEP_GRANULES)).clamp(min=1)
    order = count.argsort(descending=True, stable=True)
    first_step = torch.empty_like(lengths)
    first_step[order] = lengths[order].cumsum(0) - lengths[order]
    step, place = first_step[granules.pair] + granules.place // STEP_GRANULES, granules.place % STEP_GRANULES
    steps = torch.full((int(lengths.sum()), STEP + 4), -1, dtype=torch.int64, device=kept.device)
    steps[:, :STEP].view(-1, STEP_GRANULES, GRANULE)[step, place] = granules.inputs
    used = ((granules.halves & 1) << place) | ((granules.halves >> 1) << (place + STEP_GRANULES))
    steps[:, STEP] = 0
    steps[:, STEP].index_add_(0, step, used)
    owner = torch.cat([granules.pair * 2 + half for half in range(2)])  # of what each panel granule belongs to
    chosen = torch.cat([(granules.halves >> half) & 1 for half in range(2)]).bool().nonzero().flatten()
    chosen = chosen[owner[chosen].argsort(stable=True)]
    for half in range(2):  # where the panel granules of each step begin
        ours = (owner[chosen] % 2 == half).nonzero().flatten()
        begins = torch.full((len(steps),), len(chosen), dtype=torch.int64, device=kept.device)
        begins.scatter_reduce_(0, step.repeat(2)[chosen[ours]], ours, "amin")
        steps[:, STEP + 1 + half] = begins
    pairs = torch.stack([first_step, lengths], dim=1)
    shortest, longest = int(lengths.min()), int(lengths.max())
    compact, place = _side_by_side(outputs[order][: int((count > 0).sum())], stored.shape[0])
    return PairTables(
        n=stored.shape[0],
        k=stored.shape[1],
        panels=_panels(stored.to_dense(), outputs.view(-1, HALF)[owner[chosen]], granules.inputs.repeat(2, 1)[chosen]),
        steps=steps.to(torch.int32),
        pairs=pairs[order].to(torch.int32),
        outputs=outputs[order],
        steps_of_each=shortest if longest - shortest <= 1 else 0,
        whole_runs=_in_whole_runs(outputs),
        lengths=tuple((-(-count[order] // STEP_GRANULES)).tolist()),
        compact=compact,
        place=place,
    )


def dense_weight(panels: Tensor, steps: Tensor, pairs: Tensor, outputs: Tensor, n: int, k: int) -> Tensor:
    """W [N, K] from tensors of `PairTables`, without a look at their contents from the host."""
    device = panels.device
    first_steps, by_place = pairs[:, 0].sort()
    step = torch.arange(steps.shape[0], device=device, dtype=first_steps.dtype)
    pair = by_place[torch.searchsorted(first_steps, step, right=True) - 1]  # of each step
    bit = torch.arange(2 * STEP_GRANULES, device=device)
    used = ((steps[:, STEP, None] >> bit) & 1).view(-1, 2, STEP_GRANULES)  # [steps, half, granule]
    panel = steps[:, STEP + 1 : STEP + 3, None] + used.cumsum(dim=2) - used  # where its weights are
    unused = used[..., None] == 0
    inputs = steps[:, None, :STEP].view(-1, 1, STEP_GRANULES, GRANULE).masked_fill(unused, -1)
    of_halves = outputs.view(-1, 2, 1, HALF)[pair].expand(-1, -1, STEP_GRANULES, -1).masked_fill(unused, -1)
    spare = panels.new_zeros(1, GRANULE, HALF)  # for granules that a half does not use
    weights = _swizzled(torch.cat([panels, spare]))[panel]  # [steps, half, granule, 16, 64]
    dense = panels.new_zeros(n + 1, k + 1)  # what belongs to output or input -1 goes to the last row or column
    dense[of_halves.long()[..., None, :], inputs.long()[..., :, None]] = weights
    return dense[:n, :k]


def _side_by_side(outputs: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """`compact` and `place` of `PairTables`, for the outputs of pairs that keep inputs."""
    slots = torch.arange(outputs.numel(), dtype=torch.int32, device=outputs.device)
    flat = outputs.flatten().long()
    place = torch.full((n,), -1, dtype=torch.int32, device=outputs.device)
    place[flat[flat >= 0]] = slots[flat >= 0]
    return slots.masked_fill(flat < 0, -1).view_as(outputs), place


def _in_whole_runs(outputs: Tensor) -> bool:
    runs = outputs.view(-1, 8)
    first = runs[:, :1]
    follow = (runs == first + torch.arange(8, device=runs.device)).all(dim=1) & (first[:, 0] % 8 == 0)
    return bool((follow | (runs == -1).all(dim=1)).all())


def _half_tiles(stored: GatheredFormat) -> tuple[Tensor, Tensor]:
    """An even number of half tiles: their outputs, int32 [halves, 64], and the inputs they keep, bool [halves, K].

    The outputs that are not stored form half tiles at the end that keep nothing.
    """
    (n, k), tile, device = stored.shape, stored.tile, stored.device
    kept = torch.zeros(stored.tiles, k, dtype=torch.bool, device=device)
    tile_of = torch.repeat_interleave(torch.arange(stored.tiles, device=device), stored.tile_offsets.diff())
    kept[tile_of, stored.kept_inputs.long()] = True
    outputs = _in_halves(stored.output_index)
    if tile >= HALF:
        kept = kept[torch.arange(len(outputs), device=device) * HALF // tile]
    else:
        kept = pad(kept, (0, 0, 0, outputs.numel() // tile - len(kept)))
        outputs, kept = _united(outputs.view(-1, tile), kept)
    if tile <= HALF:  # an input that both halves of a pair keep is loaded once
        order = _partners(kept)
        outputs, kept = outputs[order], kept[order]
    owned = torch.zeros(n, dtype=torch.bool, device=device)
    owned[stored.output_index.long()] = True
    outputs = torch.cat([outputs, _in_halves((~owned).nonzero().flatten().to(torch.int32))])
    if len(outputs) % 2:
        outputs = pad(outputs, (0, 0, 0, 1), value=-1)
    return outputs, pad(kept, (0, 0, 0, len(outputs) - len(kept)))


def _united(outputs: Tensor, kept: Tensor) -> tuple[Tensor, Tensor]:
    """Narrow tiles, outputs [tiles, tile] and kept [tiles, K], two by two until they are half tiles."""
    while outputs.shape[1] < HALF:
        if outputs.shape[1] < RUN:
            partners = torch.arange(len(outputs), device=outputs.device).view(-1, 2)
        else:
            partners = _partners(kept).view(-1, 2)
        outputs, kept = outputs[partners].flatten(1), kept[partners].any(dim=1)
    return outputs, kept


def _partners(kept: Tensor) -> Tensor:
    """An order of the rows of kept [units, K] in which each two that follow one another share many inputs; int64 [units].

    Each unit, those that keep most first, takes the free one that shares most inputs with it. That also puts units of about
    the same size together, which then do not wait for one another. Of an odd number the smallest stays alone at the end.
    """
    largest_first = kept.sum(dim=1).argsort(descending=True, stable=True)
    shared = kept[largest_first].float()
    shared = (shared @ shared.t()).cpu()
    free, partners = torch.ones(len(kept) - len(kept) % 2, dtype=torch.bool), []
    for unit in range(len(free)):
        if free[unit]:
            free[unit] = False
            partner = int(shared[unit, : len(free)].masked_fill(~free, -1).argmax())
            free[partner] = False
            partners += [unit, partner]
    partners += range(len(free), len(kept))
    return largest_first[torch.tensor(partners, dtype=torch.int64, device=kept.device)]


def _granules(kept: Tensor, *, mixed: bool) -> _Granules:
    """Group the inputs of each pair by the halves that keep them.

    Args:
        kept: bool [pairs, 2, K].
        mixed: whether the last inputs of each group, which do not fill a granule, may share one with those of the others.
            Halves then multiply by zeros where they do not keep an input, as united narrow tiles do anyway.
    """
    k = kept.shape[2]
    halves_of = kept[:, 0].long() + 2 * kept[:, 1].long()  # [pairs, K]
    if mixed:
        halves_of = _with_rests_together(halves_of)
    pair, inputs = halves_of.nonzero(as_tuple=True)
    kind = pair * 4 + halves_of[pair, inputs]
    by_kind = kind.argsort(stable=True)  # keeps inputs ascending within a kind
    kind, inputs = kind[by_kind], inputs[by_kind]
    count = torch.bincount(kind, minlength=4 * len(kept))
    rank = torch.arange(len(kind), device=kept.device) - (count.cumsum(0) - count)[kind]
    granules = -(-count // GRANULE)
    granule = (granules.cumsum(0) - granules)[kind] + rank // GRANULE
    members = inputs.new_full((int(granules.sum()), GRANULE), -1)
    members[granule, rank % GRANULE] = inputs
    granule_kind = torch.repeat_interleave(torch.arange(len(count), device=kept.device), granules)
    granule_pair = granule_kind // 4
    order = (granule_pair * k + members[:, 0]).argsort()  # all halves walk up along K together: rows of X stay in L2
    granule_pair = granule_pair[order]
    per_pair = torch.bincount(granule_pair, minlength=len(kept))
    place = torch.arange(len(order), device=kept.device) - (per_pair.cumsum(0) - per_pair)[granule_pair]
    return _Granules(pair=granule_pair, place=place, halves=granule_kind[order] % 4, inputs=members[order])


def _with_rests_together(halves_of: Tensor) -> Tensor:
    """halves_of [pairs, K]: 3, as if both halves kept it, for what is left of each group where that saves a granule."""
    of_kind = torch.stack([halves_of == kind for kind in (1, 2, 3)], dim=1)  # [pairs, 3, K]
    count = of_kind.sum(dim=2)
    rests = count % GRANULE
    saves = -(-rests.sum(dim=1) // GRANULE) < (rests > 0).sum(dim=1)
    rest = (of_kind & (of_kind.cumsum(dim=2) > (count - rests)[:, :, None])).any(dim=1)
    return halves_of.masked_fill(rest & saves[:, None], 3)


def _panels(weight: Tensor, outputs: Tensor, inputs: Tensor) -> Tensor:
    """[granules, 16, 64], swizzled, from weight [N, K], outputs [granules, 64] and inputs [granules, 16]."""
    outputs, inputs = outputs.long()[:, None, :], inputs[:, :, None]
    panels = weight[outputs.clamp(min=0), inputs.clamp(min=0)] * ((outputs >= 0) & (inputs >= 0))
    return _swizzled(panels)


def _swizzled(panels: Tensor) -> Tensor:
    """[granules, 16, 64] with chunk c of eight outputs at place c ^ (row % 8), or back from there."""
    row, chunk = torch.arange(8, device=panels.device)[:, None], torch.arange(8, device=panels.device)
    swizzled = panels.view(-1, 2, 8, 8, 8)[:, :, row, chunk ^ row]  # [granules, 2, row % 8, chunk, 8]
    return swizzled.reshape(-1, GRANULE, HALF)


def _in_halves(index: Tensor) -> Tensor:
    """[ceil(len / 64), 64], filled up with -1."""
    return pad(index, (0, -index.numel() % HALF), value=-1).view(-1, HALF)
