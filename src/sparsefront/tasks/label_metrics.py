"""The metrics of one label per input."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torchmetrics import Metric
from torchmetrics.classification import BinaryF1Score, MulticlassAccuracy
from torchmetrics.regression import PearsonCorrCoef, SpearmanCorrCoef

from sparsefront.tasks.matthews_correlation import MatthewsCorrelation

METRICS: dict[str, Callable[[int], Metric]] = {
    "accuracy": lambda classes: MulticlassAccuracy(classes, average="micro"),
    "f1": lambda classes: BinaryF1Score(),
    "matthews_correlation": lambda classes: MatthewsCorrelation(classes),
    "pearson": lambda classes: PearsonCorrCoef(),
    "spearman": lambda classes: SpearmanCorrCoef(),
}
"""Name -> metric for that many classes. `f1` is of class 1 of two; correlations of scores need one output."""


@contextmanager
def constants_allowed() -> Iterator[None]:
    """A correlation with what is all the same is not defined: NaN, without torchmetrics' warning."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The variance of predictions or target is close to zero")
        yield
