"""Vectors of outputs that need not be neighbors: vector-wise after a permutation of the outputs that is searched here."""

import functools
from typing import ClassVar

import torch
from pydantic import NonNegativeInt, PositiveInt
from torch import Tensor

from sparsefront.masks.groups import select_in_layer
from sparsefront.masks.weight_view import Permutation
from sparsefront.patterns.blocks import BlockPattern, BlockStep
from sparsefront.settings_class import settings_class

# An order of the outputs in which vectors of neighbors keep more importance.


def shuffled_outputs(importance: Tensor, length: int, sparsity: float, rounds: int) -> Tensor | None:
    """Group the outputs of a layer so that vector-wise pruning inside the groups keeps more importance.

    1. Prune weight by weight to the sparsity and compare outputs by the cosine of their masks; starting from the first
       output that is left, each group takes the `length - 1` that are most like it.
    2. Prune vector-wise in these groups. What output r would keep in group g is then a sum over g's inputs, A[r, g]. Every
       pair of groups in turn (a round-robin) redistributes its outputs so that the sum of A is largest. Prune again;
       repeat while more is kept. The same from the outputs' own order: neighbors of one attention head may be alike in
       ways that masks do not show. The better of both is taken.

    Args:
        importance: float32 [N, K]; `length` divides N.
        length: outputs per group.
        sparsity: fraction of zeros.
        rounds: how often step 2 is repeated at most.
    Returns:
        int64 [N], place i holds output order[i]; groups and the list of groups ascend. None where the outputs' own order
        keeps as much.
    Source: Huang et al., "Shfl-BW: Accelerating Deep Neural Network Inference with Tensor-Core Aware Weight Pruning", DAC
        2022, searches in the same two stages: a mask pruned without structure, then outputs with like masks grouped (by
        k-means). Departures: groups are of equal size from the start, and step 2 maximizes the importance that is really
        kept instead of a distance between masks.
    """
    if length in (1, importance.shape[0]):
        return None
    own = torch.arange(importance.shape[0], device=importance.device).view(-1, length)
    neighbors = _kept_importance(importance, own, sparsity)[0]
    starts = _alike(_element_wise(importance, sparsity), length), own
    most, best = max((_searched(importance, start, sparsity, rounds) for start in starts), key=lambda found: found[0])
    return _ascending(best) if most > neighbors else None


def _searched(importance: Tensor, groups: Tensor, sparsity: float, rounds: int) -> tuple[float, Tensor]:
    """Step 2 from these groups (int64 [G, v]) on: what is kept in the end, and the groups that keep it."""
    most, inputs = _kept_importance(importance, groups, sparsity)
    for _ in range(rounds):
        moved = _redistributed(groups, importance @ inputs.to(importance.dtype).t())
        kept, inputs = _kept_importance(importance, moved, sparsity)
        if kept <= most:
            break
        most, groups = kept, moved
    return most, groups


def _kept_importance(importance: Tensor, groups: Tensor, sparsity: float) -> tuple[float, Tensor]:
    """What vector-wise pruning keeps with these groups (int64 [G, v]), and which inputs each keeps (bool [G, K])."""
    permuted = importance[groups.flatten()]
    step = BlockStep(sparsity, (groups.shape[1], 1))
    vectors = step.groups(permuted, torch.ones_like(permuted, dtype=torch.bool))
    inputs = select_in_layer(vectors, permuted.numel(), sparsity)
    per_input = permuted.view(*groups.shape, -1).sum(dim=1)
    return float(per_input[inputs].sum(dtype=torch.float64)), inputs


def _element_wise(importance: Tensor, sparsity: float) -> Tensor:
    """The mask [N, K] without structure."""
    step = BlockStep(sparsity, (1, 1))
    groups = step.groups(importance, torch.ones_like(importance, dtype=torch.bool))
    return select_in_layer(groups, importance.numel(), sparsity)


def _alike(mask: Tensor, length: int) -> Tensor:
    """Outputs with like masks in groups, int64 [G, length]; each group begins with the first output that is left."""
    rows = mask.float()
    rows = rows / rows.norm(dim=1, keepdim=True).clamp(min=1)
    likeness = rows @ rows.t()
    left = torch.arange(len(mask), device=mask.device)
    groups = []
    while len(left):
        order = likeness[left[0], left].index_fill(0, left.new_zeros(1), torch.inf).sort(descending=True, stable=True)
        groups.append(left[order.indices[:length]])
        left = left[order.indices[length:].sort().values]
    return torch.stack(groups)


def _redistributed(groups: Tensor, worth: Tensor) -> Tensor:
    """Groups whose outputs have moved to where they are worth more, pair of groups by pair.

    Args:
        groups: int64 [G, v].
        worth: [N, G], what an output would keep in a group.
    Returns:
        int64 [G, v]. No sum over a pair's outputs has fallen; outputs that are worth the same stay where they are.
    """
    groups, count = groups.clone(), len(groups)
    for first, second in _round_robin(count, groups.device):
        outputs = torch.cat([groups[first], groups[second]], dim=1)  # [pairs, 2v]
        prefers_second = worth[outputs, second[:, None]] - worth[outputs, first[:, None]]
        order = prefers_second.sort(dim=1, stable=True).indices
        groups[first], groups[second] = outputs.gather(1, order).chunk(2, dim=1)
    return groups


@functools.cache
def _round_robin(count: int, device: torch.device) -> list[tuple[Tensor, Tensor]]:
    """Every pair of `count` groups once, in rounds of disjoint pairs (first < second), as a tournament is drawn up."""
    seats = count + count % 2  # with an odd count one seat stays empty, and whatever is paired with it waits
    rounds = []
    circle = torch.arange(1, seats)
    for turn in range(seats - 1):
        turned = torch.cat([torch.zeros(1, dtype=torch.int64), circle.roll(turn)])
        pairs = torch.stack([turned[: seats // 2], turned[seats // 2 :].flip(0)])
        pairs = pairs[:, (pairs < count).all(dim=0)].sort(dim=0).values
        rounds.append((pairs[0].to(device), pairs[1].to(device)))
    return rounds


def _ascending(groups: Tensor) -> Tensor:
    """The same groups as one order: each ascending, in the order of their first outputs."""
    groups = groups.sort(dim=1).values
    return groups[groups[:, 0].argsort()].flatten()


@settings_class()
class ShuffledBlock(BlockPattern):
    """Keep the best vectors of v outputs at one input k, the outputs grouped so that more importance is kept.

    The groups are found once, from the first scores and at the final sparsity (the layer's own where the allocation assigns
    one); see `shuffled_outputs`. The order lives in storage (the tiles of the gathered format name their outputs), so the
    function of the network is unchanged. In a layer where no grouping keeps more than neighbors do, at that sparsity, the
    outputs stay in their own order.

    Args:
        granularity: v, outputs per group; it divides N.
        search_rounds: how often groups exchange outputs at most; 0 leaves them as first formed.
    Source: Huang et al., "Shfl-BW: Accelerating Deep Neural Network Inference with Tensor-Core Aware Weight Pruning", DAC
        2022. The selection of vectors is that of `vector_wise`, and so is the source's allocation.
    """

    granularity: PositiveInt = 32
    search_rounds: NonNegativeInt = 8
    name: ClassVar[str] = "shuffled_block"
    uses_granularity: ClassVar[bool] = True

    @property
    def block(self) -> tuple[int, int]:
        return self.granularity, 1

    @property
    def outputs_together(self) -> int | None:
        return None

    @property
    def order_searched_by(self) -> str | None:
        return "pattern"

    def find_permutation(self, importance: Tensor, sparsity: float) -> Permutation | None:
        order = shuffled_outputs(importance, self.granularity, sparsity, self.search_rounds)
        return None if order is None else Permutation(outputs=order)

    def storage(self, shape: tuple[int, int], sparsity: float) -> tuple[str, dict]:
        return "gathered", {"tile": self.granularity, "drop_empty_outputs": False}

    def check(self, mask: Tensor, sparsity: float, permutation: Permutation | None = None) -> None:
        """As for every pattern; without a permutation any order will do that puts equal outputs side by side."""
        if permutation is None and mask.dtype == torch.bool and mask.dim() == 2:
            kinds = torch.unique(mask, dim=0, return_inverse=True)[1]
            permutation = Permutation(outputs=kinds.argsort(stable=True))
        super().check(mask, sparsity, permutation)
