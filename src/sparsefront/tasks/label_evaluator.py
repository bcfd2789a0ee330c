"""Evaluating one label per input, for images and sentences alike."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torchmetrics import MetricCollection

from sparsefront.errors import InvalidSetting
from sparsefront.tasks.label_metrics import METRICS, constants_allowed
from sparsefront.tasks.outcomes import Outcomes, samples_digest
from sparsefront.tasks.standard_error import error_by_bootstrap, error_of_proportion


class LabelEvaluator:
    """Metrics of logits against labels.

    Args:
        metrics: names out of `METRICS`.
        num_classes: outputs of the net; 1 = a score.
        logits_of: finds the logits [B, num_classes] in what the net returns.
    """

    def __init__(self, metrics: tuple[str, ...], num_classes: int, logits_of: Callable[[Any], Tensor]) -> None:
        self._metrics = MetricCollection({name: METRICS[name](num_classes) for name in metrics})
        self._num_classes = num_classes
        self._logits_of = logits_of
        self._seen: list[tuple[Tensor, Tensor]] = []  # predicted, labels; where they are, so that nothing waits
        self._undefined: list[Tensor] = []  # of each batch how many inputs have NaN among their logits

    @torch.no_grad()
    def update(self, output: Any, batch: dict[str, Tensor]) -> None:
        logits = self._logits_of(output)
        predicted = logits.squeeze(-1).float() if self._num_classes == 1 else logits.argmax(-1)
        # On the logits' device: nothing waits for a GPU here, and several processes can add up their counts.
        self._seen.append((predicted, batch["labels"].to(predicted.device)))
        self._undefined.append(logits.isnan().any(-1).sum())  # `argmax` takes NaN for the largest
        self._metrics.to(predicted.device).update(*self._seen[-1])

    def compute(self) -> dict[str, float]:
        """As `Evaluator.compute`; a correlation with a constant output, which is not defined, counts as 0.

        Raises:
            InvalidSetting: outputs that are NaN, which predict nothing.
        """
        if undefined := sum(map(int, self._undefined)):
            given = f"NaN for {undefined} of {self.samples} inputs"
            allowed = (
                "must be numbers: look for NaN in weights and data, or values too large for the dtype (measure.dtype)"
            )
            raise InvalidSetting("outputs", given, allowed)
        with constants_allowed():
            values = {name: float(value) for name, value in self._metrics.compute().items()}
        return {name: 0.0 if math.isnan(value) else value for name, value in values.items()}

    @property
    def samples(self) -> int:
        return sum(len(labels) for _, labels in self._seen)

    def standard_errors(self) -> dict[str, float]:
        """As `Evaluator.standard_errors`: of accuracy in closed form, of the others by bootstrap."""
        predicted, labels = (torch.cat(parts).cpu() for parts in zip(*self._seen))
        return {name: self._standard_error(name, predicted, labels) for name in self._metrics}

    def outcomes(self, metric: str) -> Outcomes:
        """As `Evaluator.outcomes`: of accuracy whether each is right, of the others prediction and label."""
        predicted, labels = (torch.cat(parts).cpu().numpy() for parts in zip(*self._seen))
        samples = samples_digest(labels.tolist())
        if metric == "accuracy":
            return Outcomes(metric, (predicted == labels).astype(np.uint8), None, samples)
        return Outcomes(metric, predicted, labels, samples)

    def _standard_error(self, name: str, predicted: Tensor, labels: Tensor) -> float:
        if name == "accuracy":
            return error_of_proportion(float((predicted == labels).double().mean()), len(labels))
        metric = METRICS[name](self._num_classes)
        with constants_allowed():  # in a draw
            return error_by_bootstrap(lambda chosen: float(metric(predicted[chosen], labels[chosen])), len(labels))
