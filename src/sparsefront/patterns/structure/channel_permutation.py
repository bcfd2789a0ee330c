"""An order of the inputs in which n:m windows keep more importance: bounded column swaps with escapes."""

import torch
from torch import Tensor

from sparsefront.patterns.structure.window import Window

SMALLEST_GAIN = 1e-5  # of the layer's importance per swap: below it lie the roundings of float32 sums
SEED = 0


def permuted_inputs(importance: Tensor, window: Window, rounds: int) -> Tensor | None:
    """Permute the inputs of a layer so that the best n of every m consecutive ones hold more importance.

    A round knows the exact gain of every swap of two inputs of different windows. It carries out the best of them among
    windows that have not been touched in this round, so that their gains add up. Where no swap gains any more, the order
    is kept if it is the best so far, and the search goes on from the best after one random input of every window has
    moved to another (an escape; the random numbers have a fixed seed). The gain of bringing input c into a window in
    place of input d is, summed over outputs,

        relu(I[c] - t) + (top n without d) - (top n),   t = the n-th largest importance of the window without d,

    so one l1 distance between columns of importance and of thresholds serves all pairs of a round.

    Args:
        importance: float32 [N, K]; m divides K.
        window: n of m.
        rounds: at most this many rounds, escapes included; each costs N * K^2 operations at most, in later rounds only
            the windows that changed are computed again.
    Returns:
        int64 [K], place i holds input order[i]; each window and the list of windows ascend. None where no order was found
        that keeps more importance than the inputs' own.
    Source: Pool and Yu, "Channel Permutations for N:M Sparsity", NeurIPS 2021: greedy swaps of columns between stripes
        with bounded escapes from local optima. Departures: any n:m, all stripes in one round instead of one pair at a
        time, and no exhaustive search within groups of stripes.
    """
    inputs = importance.shape[1]
    if window.n == window.m or window.m == inputs:
        return None
    order = torch.arange(inputs, device=importance.device)
    best, most = None, kept_importance(importance, order, window)
    generator = torch.Generator().manual_seed(SEED)
    search = _Swaps(importance, order, window)
    for _ in range(rounds):
        if search.improve():
            continue
        kept = kept_importance(importance, search.order, window)
        if kept > most:
            best, most = search.order.clone(), kept
        search.move_to(_escaped(order if best is None else best, window, generator))
    kept = kept_importance(importance, search.order, window)
    best = search.order if kept > most else best
    return None if best is None else _ascending(best, window)


def kept_importance(importance: Tensor, order: Tensor, window: Window) -> float:
    """Importance [N, K] that the best n of every m inputs hold, with the inputs in an order (int64 [K]); in float64."""
    windows = importance[:, order].unflatten(1, (-1, window.m))
    return float(windows.topk(window.n, dim=2).values.sum(dtype=torch.float64))


class _Swaps:
    """An order on its way, with the gains of all swaps; tensors are indexed by input, not by place."""

    def __init__(self, importance: Tensor, order: Tensor, window: Window) -> None:
        self.importance, self.window, self.order = importance, window, order.clone()
        self.least = SMALLEST_GAIN * float(importance.abs().sum(dtype=torch.float64)) / importance.shape[1]
        inputs = importance.shape[1]
        self.without = importance.new_empty(inputs)  # what a window loses with this input, before another one comes
        self.brings = importance.new_empty(inputs, inputs)  # [c, d]: what c brings to the window in place of d
        self._renew(torch.arange(inputs // window.m, device=order.device))

    def move_to(self, order: Tensor) -> None:
        """Go on from another order."""
        changed = (order != self.order).unflatten(0, (-1, self.window.m)).any(dim=1)
        self.order = order
        self._renew(changed.nonzero().flatten())

    def improve(self) -> bool:
        """Carry out the best swaps of a round; False where there is none."""
        windows, m = len(self.order) // self.window.m, self.window.m
        gains = self.without[:, None] + self.brings  # [c, d] for c coming, d going; both directions of a swap add up
        gains = (gains + gains.t())[self.order][:, self.order]
        by_pair = gains.view(windows, m, windows, m).transpose(1, 2).reshape(windows, windows, m * m)
        most, places = by_pair.max(dim=2)
        most.fill_diagonal_(-torch.inf)
        first, second = _disjoint_pairs(most, self.least)
        if not len(first):
            return False
        chosen = places[first, second]
        one, other = first * m + chosen // m, second * m + chosen % m
        self.order[one], self.order[other] = self.order[other], self.order[one]
        self._renew(torch.cat([first, second]))
        return True

    def _renew(self, windows: Tensor) -> None:
        """Compute again what depends on the members of these windows."""
        n, m = self.window
        inputs = self.order.unflatten(0, (-1, m))[windows]  # [w, m]
        members = self.importance[:, inputs]  # [N, w, m]
        largest = members.topk(n + 1, dim=2).values
        last, next_best = largest[..., n - 1 : n], largest[..., n:]
        among_best = members >= last
        # a window that loses one of its best takes in the next best; one that loses another stays as it is
        lost = torch.where(among_best, next_best - members, 0.0).sum(dim=0)
        threshold = torch.where(among_best, next_best, last)
        places = inputs.flatten()
        self.without[places] = lost.flatten()
        self.brings[:, places] = _positive_differences(self.importance, threshold.flatten(1))


def _positive_differences(importance: Tensor, threshold: Tensor) -> Tensor:
    """[c, d] = sum over outputs of relu(importance[:, c] - threshold[:, d]).

    relu(a - b) = (|a - b| + a - b) / 2, and the sum of |a - b| over outputs is the l1 distance of two columns: no
    intermediate [N, c, d].
    """
    distance = torch.cdist(importance.t().contiguous(), threshold.t().contiguous(), p=1)
    return (distance + importance.sum(dim=0)[:, None] - threshold.sum(dim=0)[None, :]).div_(2)


def _disjoint_pairs(gains: Tensor, least: float) -> tuple[Tensor, Tensor]:
    """Pairs of windows (first < second), none in two pairs: those that are each other's best, again and again.

    gains: symmetric [windows, windows]; pairs that gain no more than `least` are left alone. Ties go to the lower index.
    """
    places = torch.arange(len(gains), device=gains.device)
    free = gains.clone()
    pairs: list[tuple[Tensor, Tensor]] = []
    while True:
        most, partner = free.max(dim=1)
        first = ((partner[partner] == places) & (places < partner) & (most > least)).nonzero().flatten()
        if not len(first):
            break
        second = partner[first]
        pairs.append((first, second))
        taken = torch.cat([first, second])
        free[taken] = -torch.inf
        free[:, taken] = -torch.inf
    if not pairs:
        return places[:0], places[:0]
    return torch.cat([first for first, _ in pairs]), torch.cat([second for _, second in pairs])


def _escaped(order: Tensor, window: Window, generator: torch.Generator) -> Tensor:
    """The order after one input of every window, drawn at random, has gone to another window in a random cycle."""
    windows = len(order) // window.m
    moved = torch.randperm(windows, generator=generator)
    places = moved * window.m + torch.randint(window.m, (windows,), generator=generator)
    places = places.to(order.device)
    escaped = order.clone()
    escaped[places] = order[places.roll(1)]
    return escaped


def _ascending(order: Tensor, window: Window) -> Tensor:
    """The same windows, each with its inputs ascending, in the order of their first inputs."""
    windows = order.unflatten(0, (-1, window.m)).sort(dim=1).values
    return windows[windows[:, 0].argsort()].flatten()
