"""n:m sparsity: exactly n of every m consecutive weights along K are kept; input permutations and transposable tiles."""

import functools
import itertools
import math
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field, PositiveInt
from torch import Tensor

from sparsefront.errors import InvalidSetting
from sparsefront.masks.groups import Boundaries, Groups
from sparsefront.masks.weight_view import Permutation
from sparsefront.patterns.base import Step, Window, WindowSize
from sparsefront.patterns.blocks import BlockPattern, BlockStep, in_blocks
from sparsefront.settings_class import settings_class

# Transposable tiles: 4x4 tiles that keep two weights per row and column, so that W and its transpose are both 2:4.

SIDE = 4


@functools.cache
def tile_candidates(kept: int) -> Tensor:
    """All masks of a 4x4 tile that keep `kept` weights in each row and each column.

    Returns:
        bool [candidates, 16] on the CPU, row-major: 90 candidates for 2, 24 for 3, 1 for 4. They are sorted in descending
        order as binary numbers, so that ties keep earlier positions.
    """
    rows = [row for row in itertools.product((True, False), repeat=SIDE) if sum(row) == kept]
    tiles = itertools.product(rows, repeat=SIDE)
    regular = [tile for tile in tiles if all(sum(column) == kept for column in zip(*tile, strict=True))]
    return torch.tensor(regular).flatten(1)


@dataclass(frozen=True)
class TransposableStep:
    """Select, for each 4x4 tile, the best candidate within its current mask.

    On the way of a schedule tiles keep 4, 3, then 2 weights per row and column, and the masks are nested: a tile that keeps 4
    or 3 per row and column is a regular bipartite graph, which always contains a perfect matching to prune next.

    Args:
        target: see `Step`; implied by `kept` unless `between`.
        kept: weights kept per row and column of a tile: 2 or 3.
        between: the tiles that gain most by it keep one more, as many as `target` leaves.
    Source: Hubara et al., "Accelerated Sparse Neural Training: A Provable and Efficient Method to Find N:M Transposable
        Masks", NeurIPS 2021, who find a tile's best mask as a minimum-cost flow. Scoring all candidates of a 4x4 tile is
        cheap and exact too.
    """

    target: float
    kept: int
    between: bool = False

    def groups(self, importance: Tensor, mask: Tensor) -> Groups:
        """Scores [tiles, candidates]: the importance that each keeps. One per tile survives; ties go to the lower index.

        `between`, [tiles, 2]: the best candidate, which stays, and what the best one of `kept` + 1 keeps beyond it.
        """
        fewer = _candidate_scores(importance, mask, self.kept)
        if not self.between:
            return Groups(fewer, self.kept * SIDE, keep_of_last=1)
        gain = _candidate_scores(importance, mask, self.kept + 1).amax(dim=1) - fewer.amax(dim=1)
        sizes = torch.tensor([self.kept * SIDE, SIDE], device=mask.device)
        return Groups(torch.stack([torch.full_like(gain, math.inf), gain], dim=1), sizes)

    def to_mask(self, kept: Tensor, importance: Tensor, mask: Tensor) -> Tensor:
        """Replace each tile by its selected candidate."""
        n, k = mask.shape
        if self.between:
            counts = self.kept, self.kept + 1
            best = (_candidate_scores(importance, mask, count).argmax(dim=1) for count in counts)
            fewer, more = (tile_candidates(c).to(mask.device)[i] for c, i in zip(counts, best, strict=True))
            chosen = torch.where(kept[:, 1:], more, fewer)
        else:
            chosen = tile_candidates(self.kept).to(mask.device)[kept.byte().argmax(dim=1)]
        tiles = chosen.view(n // SIDE, k // SIDE, SIDE, SIDE).transpose(1, 2)
        return tiles.reshape(n, k) & mask


def _candidate_scores(importance: Tensor, mask: Tensor, kept: int) -> Tensor:
    """[tiles, candidates]: the importance that each keeps, or -inf where it keeps a weight that the mask prunes."""
    candidates = tile_candidates(kept).to(importance.device)
    # float64 sums of 16 float32 values are exact, so ties do not depend on device or summation order
    scores = (_tiles(importance).double() @ candidates.double().t()).to(importance.dtype)
    if not bool(mask.all()):
        outside = _tiles(~mask).to(importance.dtype) @ candidates.to(importance.dtype).t()
        scores = scores.masked_fill_(outside > 0, -math.inf)
    return scores


def _tiles(matrix: Tensor) -> Tensor:
    """[N, K] as [tiles, 16], both row-major."""
    return in_blocks(matrix, (SIDE, SIDE)).transpose(1, 2).reshape(-1, SIDE * SIDE)


# Channel permutation: an order of the inputs in which n:m windows keep more importance; column swaps with escapes.

SMALLEST_GAIN = 1e-5  # of the layer's importance per swap; smaller gains are float32 rounding
SEED = 0


def permute_inputs(importance: Tensor, window: Window, rounds: int) -> Tensor | None:
    """Permute the inputs of a layer so that the best n of every m consecutive ones hold more importance.

    Each round computes the exact gain of every swap of two inputs in different windows and applies the best swaps between
    windows not yet touched in this round, so that gains add up. When no swap gains, the order is kept if it is the best so
    far, and the search restarts from the best order after moving one random input of every window (an escape, with a fixed
    seed). The gain of replacing input d in a window by input c, summed over outputs, is

        relu(I[c] - t) + (top n without d) - (top n),   t = the n-th largest importance of the window without d,

    so one l1 distance between columns of importance and of thresholds covers all pairs of a round.

    Args:
        importance: float32 [N, K]; m divides K.
        window: n of m.
            rounds: maximum number of rounds, escapes included; each costs at most N * K^2 operations, later ones less because
                only changed windows are recomputed.
        Returns:
            int64 [K]: position i holds input order[i]; each window and the list of windows are ascending. None if no order
            keeps more importance than the original.
        Source: Pool and Yu, "Channel Permutations for N:M Sparsity", NeurIPS 2021: greedy column swaps between stripes with
            bounded escapes from local optima. Departures: any n:m, all stripes in one round instead of one pair at a time,
            and no exhaustive search within groups of stripes.
    """
    inputs = importance.shape[1]
    if window.n == window.m or window.m == inputs:
        return None
    order = torch.arange(inputs, device=importance.device)
    best, most = None, sum_kept(importance, order, window)
    generator = torch.Generator().manual_seed(SEED)
    search = _Swaps(importance, order, window)
    for _ in range(rounds):
        if search.improve():
            continue
        retained = sum_kept(importance, search.order, window)
        if retained > most:
            best, most = search.order.clone(), retained
        search.move_to(_escape(order if best is None else best, window, generator))
    retained = sum_kept(importance, search.order, window)
    best = search.order if retained > most else best
    return None if best is None else _ascending(best, window)


def sum_kept(importance: Tensor, order: Tensor, window: Window) -> float:
    """Importance [N, K] kept by the best n of every m inputs in this order (int64 [K]), summed in float64."""
    windows = importance[:, order].unflatten(1, (-1, window.m))
    return float(windows.topk(window.n, dim=2).values.sum(dtype=torch.float64))


class _Swaps:
    """The current order and the gains of all swaps; tensors are indexed by input, not by position."""

    def __init__(self, importance: Tensor, order: Tensor, window: Window) -> None:
        self.importance, self.window, self.order = importance, window, order.clone()
        self.least = SMALLEST_GAIN * float(importance.abs().sum(dtype=torch.float64)) / importance.shape[1]
        inputs = importance.shape[1]
        self.without = importance.new_empty(inputs)  # what its window loses without this input, before replacement
        self.brings = importance.new_empty(inputs, inputs)  # [c, d]: what c adds to d's window instead of d
        self._renew(torch.arange(inputs // window.m, device=order.device))

    def move_to(self, order: Tensor) -> None:
        """Continue from another order."""
        changed = (order != self.order).unflatten(0, (-1, self.window.m)).any(dim=1)
        self.order = order
        self._renew(changed.nonzero().flatten())

    def improve(self) -> bool:
        """Apply the best swaps of a round; returns False if there are none."""
        windows, m = len(self.order) // self.window.m, self.window.m
        gains = self.without[:, None] + self.brings  # [c, d] for c in, d out; a swap gains in both directions
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
        """Recompute the gains that depend on the members of these windows."""
        n, m = self.window
        inputs = self.order.unflatten(0, (-1, m))[windows]  # [w, m]
        members = self.importance[:, inputs]  # [N, w, m]
        largest = members.topk(n + 1, dim=2).values
        last, next_best = largest[..., n - 1 : n], largest[..., n:]
        among_best = members >= last
        # without one of its best n, a window takes its next best; without any other input, it keeps the same n
        lost = torch.where(among_best, next_best - members, 0.0).sum(dim=0)
        threshold = torch.where(among_best, next_best, last)
        places = inputs.flatten()
        self.without[places] = lost.flatten()
        self.brings[:, places] = _positive_differences(self.importance, threshold.flatten(1))


def _positive_differences(importance: Tensor, threshold: Tensor) -> Tensor:
    """[c, d] = sum over outputs of relu(importance[:, c] - threshold[:, d]).

    relu(a - b) = (|a - b| + a - b) / 2, and the sum of |a - b| over outputs is the l1 distance of two columns, so no
    intermediate [N, c, d] is needed.
    """
    distance = torch.cdist(importance.t().contiguous(), threshold.t().contiguous(), p=1)
    return (distance + importance.sum(dim=0)[:, None] - threshold.sum(dim=0)[None, :]).div_(2)


def _disjoint_pairs(gains: Tensor, least: float) -> tuple[Tensor, Tensor]:
    """Select disjoint pairs of windows (first < second) by repeatedly matching windows that are each other's best.

    gains: symmetric [windows, windows]; pairs that gain at most `least` are skipped. Ties go to the lower index.
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


def _escape(order: Tensor, window: Window, generator: torch.Generator) -> Tensor:
    """Move one random input of every window to another window, along a random cycle."""
    windows = len(order) // window.m
    moved = torch.randperm(windows, generator=generator)
    places = moved * window.m + torch.randint(window.m, (windows,), generator=generator)
    places = places.to(order.device)
    escaped = order.clone()
    escaped[places] = order[places.roll(1)]
    return escaped


def _ascending(order: Tensor, window: Window) -> Tensor:
    """The same windows with ascending inputs, sorted by their first inputs."""
    windows = order.unflatten(0, (-1, window.m)).sort(dim=1).values
    return windows[windows[:, 0].argsort()].flatten()


TRANSPOSABLE = Window(2, SIDE)


@settings_class()
class NM(BlockPattern):
    """Keep the n most important of every m consecutive weights along K; 2:4 is n=2, m=4.

    n counts the kept weights (SparseGPT and Wanda count the removed ones). The windows of a convolution run along kh*kw*C_in:
    if m divides C_in, a window holds neighboring channels of one kernel position, as in NVIDIA's ASP; otherwise it spans
    positions. "VW-16" of the Tile-Wise talk is this pattern with m=16.

    Args:
        n: kept per window; None derives it from the sparsity.
        m: window; None takes the smallest from 4 to 64 that divides K and brings n/m within 0.01 of the density.
        permutation: "search" forms the windows after a permutation of the inputs that keeps more importance (see
            `permute_inputs`); "none" keeps the original order. The permutation is part of the storage, so no other layer
            changes; kernels read X through it.
        permutation_rounds: maximum number of search rounds.
        transposable: 2:4 in both directions: 4x4 tiles keep two weights in every row and column, so that W and its
            transpose (the backward pass) are both 2:4. Of the 90 masks of a tile, the one with the most importance is used.
            Otherwise 2:4 windows run along rows.
    Source: Lin et al., "Efficient GPU Kernels for N:M-Sparse Weights in Deep Learning" (nmSPARSE), which extends
            NVIDIA's ASP from 2:4 to any n:m; windows are pruned independently, so layers are not ranked together. Row windows
            and tiles: the PyTorch talk, whose transposable tiles are those of Hubara et al., NeurIPS 2021.
    """

    n: Annotated[PositiveInt | None, Field(description="null: from the sparsity")] = None
    m: WindowSize = None
    permutation: Literal["none", "search"] = "none"
    permutation_rounds: PositiveInt = 10
    transposable: bool = False
    name: ClassVar[str] = "n_m"

    def __post_init__(self) -> None:
        if self.n is not None and self.m is None:
            raise InvalidSetting("n", self.n, "null while m is null: n alone is no window")
        if self.n is not None and self.n > self.m:
            raise InvalidSetting(
                "n", self.n, f"a whole number from 1 to m={self.m}, or null to derive it from the sparsity"
            )
        if not self.transposable:
            return
        for key, only in TRANSPOSABLE._asdict().items():
            if getattr(self, key) not in (None, only):
                raise InvalidSetting(key, getattr(self, key), f"{only} or null with transposable: its tiles are 2:4")
        if self.permutation != "none":
            allowed = "none with transposable: there is no search for an order of its tiles"
            raise InvalidSetting("permutation", self.permutation, allowed)

    @property
    def block(self) -> tuple[int, int]:
        return 1, 1

    @property
    def balanced(self) -> bool:
        return True

    @property
    def single_weights(self) -> bool:
        return not self.transposable

    @property
    def exchanges_within(self) -> Literal["window", "row"] | None:
        return None if self.transposable else "window"

    @property
    def order_searched_by(self) -> str | None:
        return "pattern.permutation" if self.permutation == "search" else None

    @property
    def window_settings(self) -> dict[str, int | None]:
        return TRANSPOSABLE._asdict() if self.transposable else {"n": self.n, "m": self.m}

    def check_sparsity(self, sparsity: float) -> None:
        if self.transposable and not TRANSPOSABLE.expresses(sparsity):
            raise InvalidSetting(
                "transposable", True, f"4x4 tiles keep 2 of every 4 both ways: sparsity 0.5, not {sparsity:g}"
            )
        super().check_sparsity(sparsity)

    @property
    def outputs_together(self) -> int | None:
        return SIDE if self.transposable else 1

    def unsupported_reason(self, shape: tuple[int, int], sparsity: float) -> str | None:
        if self.transposable and shape[0] % SIDE:
            return f"outputs {shape[0]} are not a multiple of {SIDE}, the side of a transposable tile"
        return super().unsupported_reason(shape, sparsity)

    def find_permutation(self, importance: Tensor, sparsity: float) -> Permutation | None:
        if self.permutation == "none":
            return None
        order = permute_inputs(importance, self.window(tuple(importance.shape), sparsity), self.permutation_rounds)
        return None if order is None else Permutation(inputs=order)

    def steps(self, sparsity: float, shape: tuple[int, int], final_sparsity: float | None = None) -> tuple[Step, ...]:
        steps = super().steps(sparsity, shape, final_sparsity)
        return tuple(map(_in_tiles, steps)) if self.transposable else steps

    def storage(self, shape: tuple[int, int], sparsity: float) -> tuple[str, dict]:
        return "n_m", self.window(shape, sparsity)._asdict()

    def check_structure(self, mask: Tensor, sparsity: float) -> None:
        super().check_structure(mask, sparsity)
        if self.transposable:
            counts = mask.reshape(-1, SIDE, mask.shape[1]).sum(dim=1)
            if (counts != TRANSPOSABLE.n).any():
                row, column = (int(i) for i in (counts != TRANSPOSABLE.n).nonzero()[0])
                raise ValueError(
                    f"n_m: column {column} of the tiles in rows {row * SIDE} to {row * SIDE + SIDE - 1} keeps "
                    f"{int(counts[row, column])} of {SIDE}, not {TRANSPOSABLE.n}"
                )

    def boundaries(self, mask: Tensor, sparsity: float) -> Boundaries:
        windows = super().boundaries(mask, sparsity)
        return replace(windows, rows=range(SIDE, mask.shape[0], SIDE)) if self.transposable else windows


def _in_tiles(step: BlockStep) -> TransposableStep:
    """The transposable step with the same density."""
    return TransposableStep(step.target, step.window.n, step.between)
