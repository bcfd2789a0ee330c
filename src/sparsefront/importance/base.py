"""The importance interface: one score per weight."""

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
    """The network statistics that a score may use.

    In a distributed run each rank reads its own share of the batches, and `total` sums over the ranks. Scores are therefore
    functions of sums over batches and do not depend on the number of ranks.
    """

    def gradients(self, batches: int) -> Iterator[Mapping[str, Tensor]]:
        """Yield, per batch of this rank, layer name -> gradient of the loss, shaped like the weight; only one batch is alive at
        a time. `batches` counts those of all ranks together.
        """
        ...

    def input_sums(self, batches: int, statistic: Callable[[Tensor], Tensor]) -> dict[str, Tensor]:
        """Layer name -> sum of `statistic` over the layer's inputs X in this rank's share of the batches.

        Args:
            statistic: of X, float32 [rows, K]; must be additive over rows. For a convolution, X has one row per output
                pixel, with columns in the order of the weight matrix.
        """
        ...

    def input_parts(
        self, batches: int, statistic: Callable[[Tensor], Tensor], decided: Mapping[str, Tensor] | None = None
    ) -> Iterator[dict[str, Tensor]]:
        """Like `input_sums`, but for one part of the layers after another, so that only one part's sums are in memory. In a
        causal language model each part is a block, and only that block is on the device.

        Args:
            decided: receives the scores of each part before the next one is requested; later parts then read what earlier
                layers return under the resulting masks. None: inputs come from the dense network.
        """
        ...

    def accumulated(self) -> Mapping[str, Tensor]:
        """Layer name -> float32 [N, K], what `Importance.accumulate` made of the training so far, identical on every rank; zero
        before it.
        """
        ...

    def total(self, statistics: dict[str, Tensor]) -> dict[str, Tensor]:
        """Sum the tensors over ranks, with identical bits on each; a no-op in a single process."""
        ...


class PruningParts(Protocol):
    """What an importance may read before training: a `pruning.make_masks.PruningSettings`."""

    @property
    def pattern(self) -> Pattern: ...

    @property
    def allocation(self) -> Allocation: ...

    @property
    def schedule(self) -> Schedule: ...

    @property
    def first_sparsity(self) -> float:
        """Sparsity of the schedule's first masks."""
        ...


class Importance(ABC):
    """Scores weights; larger = more worth keeping. Subclasses are frozen dataclasses whose fields are the keys of their YAML.

    Attributes:
        source: what the scores need besides the weights. With `training`, they do not exist before the recovery.
        accumulates: whether `accumulate` is called at every optimizer step of the recovery.
    """

    name: ClassVar[str]
    source: ClassVar[Source] = "weights"

    @property
    def accumulates(self) -> bool:
        return self.source == "training"

    def accumulate(self, sums: Tensor, weight: Tensor, gradient: Tensor) -> None:
        """Add a step's weight and gradient of the recovery's loss to `sums`, in place; all shaped like the weight."""
        raise NotImplementedError(f"{self.name} accumulates nothing")

    @abstractmethod
    def scores(self, weights: Mapping[str, Tensor], calibration: Calibration | None = None) -> dict[str, Tensor]:
        """Score every weight of every layer.

        Args:
            weights: layer name -> weight, Linear [N, K] or Conv2d [C_out, C_in, kh, kw], any float dtype.
            calibration: required unless `source` is `weights`.
        Returns:
            layer name -> float32 [N, K] on the weight's device, finite.
        Raises:
            ValueError: a score is NaN or infinite (names the layer), or the calibration is missing.
        """

    def check(self, pruning: PruningParts) -> None:
        """Check, before any training, that this importance works with the other pruning settings.

        Raises:
            InvalidSetting: names the full key.
        """

    def count_batches(self, *others: object) -> int | None:
        """Number of calibration batches that this importance and other parts ask for, at least 1; None if it does not say.

        Args:
            others: parts without a number of batches ask for none.
        """
        counts = [
            count + (getattr(part, "held_out", 0) if name == "batches" else 0)
            for part in (self, *others)
            for name in ("batches", "calibration_batches", "batch_norm_batches")
            if isinstance(count := getattr(part, name, None), int)
        ]
        if self.source in ("gradients", "inputs") and not isinstance(getattr(self, "batches", None), int):
            return None
        return max(counts, default=1)

    def require(self, calibration: Calibration | None) -> Calibration:
        """Return the calibration, which this score requires.

        Raises:
            ValueError: it is None.
        """
        if calibration is None:
            raise ValueError(f"{self.name}: scores come from {self.source}, and no calibration was given")
        return calibration


class WeightImportance(Importance):
    """Scores computed from a layer's weights alone, cheap enough for every training step."""

    @abstractmethod
    def of(self, matrix: Tensor) -> Tensor:
        """Scores of one float32 matrix [N, K], same shape, without checks."""

    @torch.no_grad()
    def scores(self, weights: Mapping[str, Tensor], calibration: Calibration | None = None) -> dict[str, Tensor]:
        # In fp32: squares of small fp16 weights would underflow.
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
    """Score every layer from its inputs, one part of the network at a time.

    Args:
        weights: layer name -> weight, any float dtype.
        statistic: see `Calibration.input_sums`.
        score: (layer, its weight as float32 [N, K], the statistic summed over all ranks) -> float32 [N, K].
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
    """Raise InvalidSetting unless a layer's mask follows from its own scores alone and is made once; otherwise later layers
    could not be given the pruned layer's outputs.
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
    """Layer name -> float32 [N, K], detached; fp32 Linear weights are not copied."""
    return {layer: as_matrix(weight.detach()).float() for layer, weight in weights.items()}


@torch.no_grad()
def sum_over_gradients(
    weights: Mapping[str, Tensor], calibration: Calibration, batches: int, term: Callable[[Tensor, Tensor], Tensor]
) -> dict[str, Tensor]:
    """Layer name -> sum of `term(weight, gradient)` over the batches of all ranks.

    Args:
        weights: layer name -> weight, any float dtype.
        batches: number of batches of all ranks together.
        term: maps float32 [N, K] weight and gradient to float32 [N, K].
    Returns:
        layer name -> float32 [N, K] on the weight's device.
    Raises:
        ValueError: a layer has no gradient; names it.
    """
    matrices = float_matrices(weights)
    sums = {layer: torch.zeros_like(matrix) for layer, matrix in matrices.items()}
    for read, gradients in enumerate(calibration.gradients(batches)):
        for layer, matrix in matrices.items():
            if gradients.get(layer) is None:
                raise ValueError(f"calibration batch {read} has no gradient of {layer}: the loss does not depend on it")
            sums[layer] += term(matrix, as_matrix(gradients[layer].detach()).float())
    return calibration.total(sums)
