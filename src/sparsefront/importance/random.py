"""Random importance: the baseline for every other score."""

import hashlib
from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from sparsefront.importance.base import Calibration, Importance
from sparsefront.masks.weight_view import as_matrix
from sparsefront.settings_class import settings_class


@settings_class()
class Random(Importance):
    """Uniform in [0, 1), drawn from the seed and the layer's name alone.

    Draws are made on the CPU, so they are identical on every device and rank, at every update of a gradual schedule, and
    independent of other generators.

    Args:
        seed: the run's seed.
    """

    seed: int = 0
    name: ClassVar[str] = "random"

    def scores(self, weights: Mapping[str, Tensor], calibration: Calibration | None = None) -> dict[str, Tensor]:
        return {layer: self._draw(layer, as_matrix(weight)) for layer, weight in weights.items()}

    def _draw(self, layer: str, weight: Tensor) -> Tensor:
        drawn_from = hashlib.sha256(f"{self.seed}:{layer}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(drawn_from[:8], "big") >> 1)
        return torch.rand(weight.shape, generator=generator).to(weight.device)
