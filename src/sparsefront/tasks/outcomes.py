"""What each evaluated sample adds to a metric, so that two networks can be compared sample by sample."""

import hashlib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

SAMPLES, METRIC, LABELS = "samples", "metric", "labels"
FEWEST_CLASSES = 2


@dataclass(frozen=True, eq=False)
class Outcomes:
    """Of one network over one split, in the order of the split.

    Args:
        metric: name of the tracked metric.
        values: [n]; where `labels` is None what each sample adds to a mean (0 or 1 for accuracy, F1 of an answer), else
            what was predicted.
        labels: [n], for metrics that are no means over samples.
        samples: digest of which samples these are; evaluations with the same digest can be compared pairwise.
    """

    metric: str
    values: np.ndarray
    labels: np.ndarray | None
    samples: str

    def __len__(self) -> int:
        return len(self.values)

    def metric_over(self, chosen: np.ndarray) -> float:
        """The metric over some samples, given by their numbers, int64 [k]; one that is not defined there counts as 0."""
        if self.labels is None:
            return float(self.values[chosen].mean())
        import torch

        from sparsefront.tasks.label_metrics import METRICS, constants_allowed

        # labels may all be of one class, and predictions of others
        classes = [int(part.max()) + 1 for part in (self.labels, self.values) if part.dtype.kind in "iu"]
        metric = METRICS[self.metric](max([FEWEST_CLASSES, *classes]))
        with constants_allowed():
            found = float(metric(torch.from_numpy(self.values[chosen]), torch.from_numpy(self.labels[chosen])))
        return 0.0 if math.isnan(found) else found


def samples_digest(names: Iterable[object]) -> str:
    """Of what tells a split's samples apart, in their order: the questions' names, or the labels."""
    return hashlib.sha256("\n".join(map(str, names)).encode()).hexdigest()[:16]


def save_outcomes(file: Path, outcomes: Mapping[str, Outcomes]) -> None:
    """One .npz of several networks' outcomes over the same samples.

    Args:
        outcomes: dense, masked or sparse -> outcomes.
    """
    first = next(iter(outcomes.values()))
    shared = {METRIC: np.array(first.metric), SAMPLES: np.array(first.samples)}
    if first.labels is not None:
        shared[LABELS] = first.labels
    with file.open("wb") as opened:
        np.savez_compressed(opened, **shared, **{side: found.values for side, found in outcomes.items()})


def load_outcomes(file: Path) -> dict[str, Outcomes]:
    """What `save_outcomes` wrote.

    Raises:
        OSError, ValueError, KeyError: no such file, or another one.
    """
    with np.load(file, allow_pickle=False) as arrays:
        metric, samples = str(arrays[METRIC]), str(arrays[SAMPLES])
        labels = arrays[LABELS] if LABELS in arrays else None
        sides = [name for name in arrays if name not in (METRIC, SAMPLES, LABELS)]
        return {side: Outcomes(metric, arrays[side], labels, samples) for side in sides}
