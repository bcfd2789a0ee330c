"""What every importance provides: a score per weight."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import ClassVar

from torch import Tensor

GradientBatches = Iterable[Mapping[str, Tensor]]


class Importance(ABC):
    """Scores weights, larger = more worth keeping. Subclasses are frozen dataclasses, fields as in their YAML."""

    name: ClassVar[str]
    needs_gradients: ClassVar[bool] = False

    @abstractmethod
    def scores(
        self, weights: Mapping[str, Tensor], gradient_batches: GradientBatches | None = None
    ) -> dict[str, Tensor]:
        """Score every weight of every layer.

        Args:
            weights: layer name -> weight, Linear [N, K] or Conv2d [C_out, C_in, kh, kw], any float dtype.
            gradient_batches: where `needs_gradients`: per calibration batch, layer name -> gradient of the loss, shaped
                like the weight. Read lazily, so one batch of gradients is alive at a time.
        Returns:
            layer name -> float32 [N, K] on the weight's device, finite.
        Raises:
            ValueError: scores that are NaN or infinite (names the layer), or gradients that are missing.
        """
