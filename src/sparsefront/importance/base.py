"""What every importance provides: a score per weight."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import ClassVar, Literal, Protocol

import torch
from torch import Tensor

from sparsefront.allocation.base import Allocation
from sparsefront.errors import InvalidSetting
from sparsefront.masks.weight_view import as_matrix
from sparsefront.networks import require_finite
from sparsefront.patterns.base import Pattern
from sparsefront.schedule.base import Schedule

Source = Literal["weights", "gradients", "inputs", "training"]


class Calibration(Protocol):
    """What a score may ask of the network and its training data.

    In a distributed run each rank reads its own share of the batches; `total` joins what the ranks found. So a score is
    a function of sums over batches, and the same whatever the number of ranks.
    """

    def gradients(self, batches: int) -> Iterator[Mapping[str, Tensor]]:
        """Per batch that this rank reads: layer name -> gradient of the loss, shaped like the weight; one batch alive at
        a time. `batches` counts those of all ranks together.
        """
        ...

    def input_sums(self, batches: int, statistic: Callable[[Tensor], Tensor]) -> dict[str, Tensor]:
        """Layer name -> sum of `statistic` over what the layer multiplies in this rank's share of the batches.

        Args:
            statistic: of X, float32 [rows, K]: a tensor that adds up over rows. A convolution's X holds one row per
                output pixel, its columns in the order of the weight seen as a matrix.
        """
        ...

    def input_parts(
        self, batches: int, statistic: Callable[[Tensor], Tensor], decided: Mapping[str, Tensor] | None = None
    ) -> Iterator[dict[str, Tensor]]:
        """As `input_sums`, of one part of the layers after another, so that no more than one part's sums are held at a time: of a
        network that writes text a part is a block, which alone is on the device then.

        Args:
            decided: gets the scores of each part before the next one is asked for: later parts are given what the layers of
                earlier ones give under the masks that these make. None: as the dense network gives it.
        """
        ...

    def movement(self) -> Mapping[str, Tensor]:
        """Layer name -> float32 [N, K], the sum of -w * dL/dw over the training so far, the same on every rank.

        Raises:
            ValueError: nothing has been trained and nothing is going to be.
        """
        ...

    def total(self, statistics: dict[str, Tensor]) -> dict[str, Tensor]:
        """The tensors summed over the ranks, with the same bits on each; as they are in a single process."""
        ...


class PruningParts(Protocol):
    """What an importance may look at before anything is trained: a `pruning.make_masks.PruningSettings`."""

    @property
    def pattern(self) -> Pattern: ...

    @property
    def allocation(self) -> Allocation: ...

    @property
    def schedule(self) -> Schedule: ...

    @property
    def first_sparsity(self) -> float:
        """Of the masks that the schedule begins with."""
        ...


class Importance(ABC):
    """Scores weights, larger = more worth keeping. Subclasses are frozen dataclasses, fields as in their YAML.

    Attributes:
        source: what the scores need besides the weights. `training`: they grow while recovery trains, so there are none
            before it.
    """

    name: ClassVar[str]
    source: ClassVar[Source] = "weights"

    @abstractmethod
    def scores(self, weights: Mapping[str, Tensor], calibration: Calibration | None = None) -> dict[str, Tensor]:
        """Score every weight of every layer.

        Args:
            weights: layer name -> weight, Linear [N, K] or Conv2d [C_out, C_in, kh, kw], any float dtype.
            calibration: needed where `source` is not `weights`.
        Returns:
            layer name -> float32 [N, K] on the weight's device, finite.
        Raises:
            ValueError: scores that are NaN or infinite (names the layer), or a calibration that is missing.
        """

    def check(self, pruning: PruningParts) -> None:
        """Validate, before anything is trained, that it works with the other parts of a pruning.

        Raises:
            InvalidSetting: with its key written from the root.
        """

    def needed(self, calibration: Calibration | None) -> Calibration:
        """The calibration, which this score cannot do without.

        Raises:
            ValueError: there is none.
        """
        if calibration is None:
            raise ValueError(f"{self.name}: scores come from {self.source}, and no calibration was given")
        return calibration


class WeightImportance(Importance):
    """Scores that follow from a layer's weights alone, cheap enough to be taken at every step of a training."""

    @abstractmethod
    def of(self, matrix: Tensor) -> Tensor:
        """Scores of one float32 matrix [N, K], same shape, unchecked."""

    @torch.no_grad()
    def scores(self, weights: Mapping[str, Tensor], calibration: Calibration | None = None) -> dict[str, Tensor]:
        # Of fp32: squares of small fp16 weights would vanish.
        scores = {layer: self.of(matrix) for layer, matrix in float_matrices(weights).items()}
        require_finite(scores)
        return scores


@torch.no_grad()
def scores_from_inputs(
    weights: Mapping[str, Tensor],
    calibration: Calibration,
    batches: int,
    statistic: Callable[[Tensor], Tensor],
    score: Callable[[str, Tensor, Tensor], Tensor],
    *,
    sequential: bool = False,
) -> dict[str, Tensor]:
    """Scores of every layer, a part of the network at a time.

    Args:
        weights: layer name -> weight, any float dtype.
        statistic: see `Calibration.input_sums`.
        score: (layer, its weight as float32 [N, K], the sum of the statistic over all ranks) -> float32 [N, K].
        sequential: see `decided` of `Calibration.input_parts`.
    """
    scores: dict[str, Tensor] = {}
    for part in calibration.input_parts(batches, statistic, scores if sequential else None):
        sums = calibration.total(part)
        for layer in list(sums):
            total = sums.pop(layer)  # freed as soon as its layer is scored
            matrix = as_matrix(weights[layer].detach()).float()
            scores[layer] = score(layer, matrix.to(total.device), total).to(matrix.device)
    require_finite(scores)
    return {layer: scores[layer] for layer in weights}


def check_sequential(pruning: PruningParts) -> None:
    """Raise InvalidSetting where a layer's mask does not follow from its own scores alone, once: layers behind it could not be
    given what it leaves.
    """
    pattern, schedule, allowed = pruning.pattern, pruning.schedule, None
    if not pruning.allocation.same_everywhere:
        allowed = f"allocation={pruning.allocation.name} decides among layers: allocation=per_layer"
    elif pattern.tied or pattern.takes_blocks or pattern.mixed:
        allowed = f"pattern {pattern.name} decides over several layers together"
    elif schedule.in_training or len(schedule.round_sparsities(0.5)) > 1:
        allowed = f"schedule={schedule.name} makes masks again: schedule=one_shot"
    if allowed is not None:
        raise InvalidSetting("importance.sequential", True, f"goes through the network once, and {allowed}")


def float_matrices(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Layer name -> float32 [N, K], detached; fp32 weights of Linears are not copied."""
    return {layer: as_matrix(weight.detach()).float() for layer, weight in weights.items()}


@torch.no_grad()
def sum_over_gradients(
    weights: Mapping[str, Tensor],
    calibration: Calibration,
    batches: int,
    term: Callable[[Tensor, Tensor], Tensor],
) -> dict[str, Tensor]:
    """Per layer the sum of `term(weight, gradient)` over the batches of all ranks.

    Args:
        weights: layer name -> weight, any float dtype.
        batches: how many, all ranks together.
        term: of float32 [N, K] weight and gradient, to float32 [N, K].
    Returns:
        layer name -> float32 [N, K] on the weight's device.
    Raises:
        ValueError: a layer without a gradient; names it.
    """
    matrices = float_matrices(weights)
    sums = {layer: torch.zeros_like(matrix) for layer, matrix in matrices.items()}
    for read, gradients in enumerate(calibration.gradients(batches)):
        for layer, matrix in matrices.items():
            if gradients.get(layer) is None:
                raise ValueError(f"calibration batch {read} has no gradient of {layer}: the loss does not depend on it")
            sums[layer] += term(matrix, as_matrix(gradients[layer].detach()).float())
    return calibration.total(sums)
