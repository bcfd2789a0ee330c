"""Erdős-Rényi-kernel sparsity: small layers stay denser than large ones."""

import math
from collections.abc import Mapping
from typing import ClassVar

from sparsefront.allocation.base import LostImportance, PerLayerAllocation
from sparsefront.settings_class import settings_class


@settings_class()
class Erk(PerLayerAllocation):
    """Density of a layer = epsilon * (C_in + C_out + kh + kw) / (C_in * C_out * kh * kw), at most 1.

    For a Linear this is epsilon * (N + K) / (N * K). epsilon follows from the total. Layers that it would push above density
    1 stay dense, and epsilon is recomputed for the others until no layer is above 1.

    Source: Evci et al., "Rigging the Lottery: Making All Tickets Winners" (RigL), 2020, section 3, "Sparsity
        Distribution"; for Linear layers Mocanu et al., "Scalable Training of Artificial Neural Networks with Adaptive
        Sparse Connectivity Inspired by Network Science" (SET), 2018.
    """

    name: ClassVar[str] = "erk"
    fixed_by_first_scores: ClassVar[bool] = False

    def layer_sparsities(
        self, weight_shapes: Mapping[str, tuple[int, ...]], sparsity: float, lost: LostImportance
    ) -> dict[str, float]:
        numel = {layer: math.prod(shape) for layer, shape in weight_shapes.items()}
        # Weights kept per unit of epsilon: the layer's density times its size.
        sides = {layer: sum(shape) for layer, shape in weight_shapes.items()}
        to_keep = (1 - sparsity) * sum(numel.values())
        sparse = set(weight_shapes)
        while sparse:
            kept_dense = sum(numel[layer] for layer in numel if layer not in sparse)
            epsilon = (to_keep - kept_dense) / sum(sides[layer] for layer in sparse)
            full = [layer for layer in sparse if epsilon * sides[layer] >= numel[layer]]
            if not full:
                return {layer: 1 - epsilon * sides[layer] / numel[layer] if layer in sparse else 0.0 for layer in numel}
            sparse.difference_update(full)  # epsilon only grows from here, so these layers stay full
        return dict.fromkeys(numel, 0.0)
