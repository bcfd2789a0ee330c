"""Which sixteen bytes of a row-major row of Y each pair of half tiles writes, in the kernel for many rows."""

import torch
from torch import Tensor

RUN = 8  # outputs of sixteen bytes
PRUNED, NOT_OURS = 0x80, 0xFF


def row_runs(outputs: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """Share out each row of Y, [n], among the pairs.

    An output that no pair computes is written, as a constant, by the pair of the output before it that is computed; where
    none is computed at all, by the first pair. A run whose outputs belong to several pairs is written by each in part.

    Args:
        outputs: int32 [pairs, 128], those that each pair computes; -1 elsewhere.
    Returns:
        runs, int32 [runs, 4]: the first output, a multiple of 8; eight bytes that say of each output where it is among
        the pair's 128, PRUNED or NOT_OURS; zero. Pair by pair, those that are all its own first; begins, int32 [pairs + 1, 2],
        where each pair's runs begin, and where those begin that it shares with other pairs.
    """
    device, pairs = outputs.device, len(outputs)
    flat = outputs.flatten().long()
    place = torch.full((n,), -1, dtype=torch.int64, device=device)  # pair * 128 + place among its outputs
    place[flat[flat >= 0]] = (flat >= 0).nonzero().flatten()
    output = torch.arange(n, device=device)
    computed = place >= 0
    before = torch.where(computed, output, -1).cummax(dim=0).values
    first = int(computed.nonzero()[0]) if bool(computed.any()) else 0
    owner = (place // outputs.shape[1])[before.clamp(min=first)].clamp(min=0)
    groups = -(-n // RUN)
    keys, run = torch.unique(owner * groups + output // RUN, return_inverse=True)
    places = torch.full((len(keys), RUN), NOT_OURS, dtype=torch.uint8, device=device)
    places[run, output % RUN] = torch.where(computed, place % outputs.shape[1], PRUNED).to(torch.uint8)
    shared = (places == NOT_OURS).any(dim=1)
    order = (keys // groups * 2 + shared).argsort(stable=True)
    runs = torch.zeros(len(keys), 4, dtype=torch.int32, device=device)
    runs[:, 0] = (keys % groups * RUN)[order]
    runs[:, 1:3] = places[order].view(torch.int32)
    count = torch.bincount(keys // groups * 2 + shared, minlength=2 * pairs)
    begins = torch.zeros(pairs + 1, 2, dtype=torch.int32, device=device)
    begins.view(-1)[1 : 2 * pairs + 1] = count.cumsum(0)
    begins[pairs, 1] = len(keys)
    return runs, begins
