"""The mask of a layer under each candidate, from one set of scores."""

from collections.abc import Mapping, Sequence

import torch
from sparsefront_kernels import SparseFormat
from torch import Tensor

from sparsefront.export.stored_weight import store
from sparsefront.masks.permutation import Permutation
from sparsefront.patterns.base import Pattern
from sparsefront.pruning.make_masks import require_structure


class CandidateMasks:
    """Makes masks when they are asked for, and keeps the orders that patterns search.

    Args:
        scores: layer -> float32 [N, K].
        patterns: the candidates.
    """

    def __init__(self, scores: Mapping[str, Tensor], patterns: Sequence[Pattern]) -> None:
        self.scores, self.patterns = scores, tuple(patterns)
        self._orders: dict[tuple[str, int, float], Permutation | None] = {}
        self._checked: set[tuple[str, int, float]] = set()  # the same masks are made again and again

    def shape(self, layer: str) -> tuple[int, int]:
        """[N, K] of a layer."""
        n, k = self.scores[layer].shape
        return n, k

    def permutation(self, layer: str, pattern: int, sparsity: float) -> Permutation | None:
        """The order in which the layer obeys a candidate; None = its own."""
        key = layer, pattern, sparsity
        if key not in self._orders:
            self._orders[key] = self.patterns[pattern].find_permutation(self.scores[layer].float(), sparsity)
        return self._orders[key]

    def mask(self, layer: str, pattern: int | None, sparsity: float) -> Tensor:
        """Bool [N, K] in the network's order, True = keep, on the scores' device; None = dense.

        Raises:
            InvalidSetting: a candidate, which may be a user's own, makes a mask that it does not allow.
        """
        scores = self.scores[layer].float()
        everything = torch.ones_like(scores, dtype=torch.bool)
        if pattern is None:
            return everything
        order = self.permutation(layer, pattern, sparsity) or Permutation()
        own = self.patterns[pattern]
        made = order.invert(own.layer_mask(order.apply(scores), everything, sparsity))
        if (key := (layer, pattern, sparsity)) not in self._checked:
            require_structure(layer, made, own, sparsity, order)
            self._checked.add(key)
        return made

    def stored(self, layer: str, weight: Tensor, mask: Tensor, pattern: int, sparsity: float) -> SparseFormat:
        """A masked weight [N, K] in the candidate's format, on the CPU."""
        storage = self.patterns[pattern].storage(self.shape(layer), sparsity)
        return store(weight.float().cpu(), mask.cpu(), storage, self.permutation(layer, pattern, sparsity))
