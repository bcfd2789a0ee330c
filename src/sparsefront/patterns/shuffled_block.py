"""Vector-wise pruning after a searched permutation of the outputs, so that vectors need not be neighbors."""

import functools
from typing import ClassVar

import torch
from pydantic import NonNegativeInt, PositiveInt
from torch import Tensor

from sparsefront.masks.groups import select_in_layer
from sparsefront.masks.weight_view import Permutation
from sparsefront.patterns.blocks import BlockPattern, BlockStep
from sparsefront.settings_class import settings_class

# Find an order of the outputs in which vectors keep more importance.


def shuffle_outputs(importance: Tensor, length: int, sparsity: float, rounds: int) -> Tensor | None:
    """Group the outputs of a layer so that vector-wise pruning inside the groups keeps more importance.

    1. Prune element-wise to the sparsity and compare outputs by the cosine similarity of their masks. Starting from the
       first ungrouped output, each group takes the `length - 1` most similar ones.
    2. Prune vector-wise in these groups. Output r would then keep A[r, g] in group g, a sum over g's inputs. Each pair of
       groups in turn (a round-robin) redistributes its outputs to maximize the sum of A. Prune again; repeat while more
       importance is kept.

    Step 2 also starts from the original order, because neighboring outputs of one attention head may be similar in ways
    that masks do not show. The better result wins.

    Args:
        importance: float32 [N, K]; `length` divides N.
        length: outputs per group.
        sparsity: fraction of zeros.
        rounds: maximum number of repetitions of step 2.
    Returns:
        int64 [N]: position i holds output order[i]; each group and the list of groups are ascending. None if the original
        order keeps as much.
    Source: Huang et al., "Shfl-BW: Accelerating Deep Neural Network Inference with Tensor-Core Aware Weight Pruning", DAC
        2022, searches in the same two stages: a mask pruned without structure, then outputs with like masks grouped (by
            k-means). Departures: groups have equal size from the start, and step 2 maximizes the kept importance itself
            instead of a distance between masks.
    """
    if length in (1, importance.shape[0]):
        return None
    own = torch.arange(importance.shape[0], device=importance.device).view(-1, length)
    neighbors = _sum_kept(importance, own, sparsity)[0]
    starts = _alike(_element_wise(importance, sparsity), length), own
    most, best = max((_search(importance, start, sparsity, rounds) for start in starts), key=lambda found: found[0])
    return _ascending(best) if most > neighbors else None


def _search(importance: Tensor, groups: Tensor, sparsity: float, rounds: int) -> tuple[float, Tensor]:
    """Run step 2 from these groups (int64 [G, v]); returns the kept importance and the final groups."""
    most, inputs = _sum_kept(importance, groups, sparsity)
    for _ in range(rounds):
        moved = _redistribute(groups, importance @ inputs.to(importance.dtype).t())
        retained, inputs = _sum_kept(importance, moved, sparsity)
        if retained <= most:
            break
        most, groups = retained, moved
    return most, groups


def _sum_kept(importance: Tensor, groups: Tensor, sparsity: float) -> tuple[float, Tensor]:
    """The importance that vector-wise pruning keeps in these groups (int64 [G, v]), and their kept inputs (bool [G, K])."""
    permuted = importance[groups.flatten()]
    step = BlockStep(sparsity, (groups.shape[1], 1))
    vectors = step.groups(permuted, torch.ones_like(permuted, dtype=torch.bool))
    inputs = select_in_layer(vectors, permuted.numel(), sparsity)
    per_input = permuted.view(*groups.shape, -1).sum(dim=1)
    return float(per_input[inputs].sum(dtype=torch.float64)), inputs


def _element_wise(importance: Tensor, sparsity: float) -> Tensor:
    """The unstructured mask [N, K]."""
    step = BlockStep(sparsity, (1, 1))
    groups = step.groups(importance, torch.ones_like(importance, dtype=torch.bool))
    return select_in_layer(groups, importance.numel(), sparsity)


def _alike(mask: Tensor, length: int) -> Tensor:
    """Group outputs with similar masks, int64 [G, length]; each group starts with the first ungrouped output."""
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


def _redistribute(groups: Tensor, worth: Tensor) -> Tensor:
    """Move outputs to the group where they keep more, one pair of groups at a time.

    Args:
        groups: int64 [G, v].
        worth: [N, G]: importance that an output would keep in a group.
    Returns:
        int64 [G, v]; no pair's sum decreases, and outputs of equal worth are not moved.
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
    """All pairs of `count` groups, in rounds of disjoint pairs (first < second), like a round-robin tournament."""
    seats = count + count % 2  # if count is odd, one seat is empty and its opponent pauses
    rounds = []
    circle = torch.arange(1, seats)
    for turn in range(seats - 1):
        turned = torch.cat([torch.zeros(1, dtype=torch.int64), circle.roll(turn)])
        pairs = torch.stack([turned[: seats // 2], turned[seats // 2 :].flip(0)])
        pairs = pairs[:, (pairs < count).all(dim=0)].sort(dim=0).values
        rounds.append((pairs[0].to(device), pairs[1].to(device)))
    return rounds


def _ascending(groups: Tensor) -> Tensor:
    """Flatten the groups into one order: each group ascending, sorted by their first outputs."""
    groups = groups.sort(dim=1).values
    return groups[groups[:, 0].argsort()].flatten()


@settings_class()
class ShuffledBlock(BlockPattern):
    """Keep the best vectors of v outputs at one input k, with outputs grouped so that more importance is kept.

    The groups are found once, from the first scores and at the final sparsity (the layer's own if the allocation assigns
    one); see `shuffle_outputs`. The tiles of the gathered format store the output indices, so the function of the network
    is unchanged. A layer keeps its original order if no grouping keeps more importance.

    Args:
        granularity: v, outputs per group; must divide N.
        search_rounds: maximum number of rounds in which groups exchange outputs; 0 keeps the initial groups.
    Source: Huang et al., "Shfl-BW: Accelerating Deep Neural Network Inference with Tensor-Core Aware Weight Pruning", DAC
        2022. Vectors are selected as in `vector_wise`, also in the source's allocation.
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
        order = shuffle_outputs(importance, self.granularity, sparsity, self.search_rounds)
        return None if order is None else Permutation(outputs=order)

    def storage(self, shape: tuple[int, int], sparsity: float) -> tuple[str, dict]:
        return "gathered", {"tile": self.granularity, "drop_empty_outputs": False}

    def check(self, mask: Tensor, sparsity: float, permutation: Permutation | None = None) -> None:
        """Like `Pattern.check`; without a permutation, any order that puts equal outputs next to each other is accepted."""
        if permutation is None and mask.dtype == torch.bool and mask.dim() == 2:
            kinds = torch.unique(mask, dim=0, return_inverse=True)[1]
            permutation = Permutation(outputs=kinds.argsort(stable=True))
        super().check(mask, sparsity, permutation)
