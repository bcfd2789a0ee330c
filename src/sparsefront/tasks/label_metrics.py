"""The metrics of one label per input."""

from collections.abc import Callable

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
