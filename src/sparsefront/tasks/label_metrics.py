"""The metrics of one label per input."""

from collections.abc import Callable

from torchmetrics import Metric
from torchmetrics.classification import BinaryF1Score, MulticlassAccuracy, MulticlassMatthewsCorrCoef
from torchmetrics.regression import PearsonCorrCoef, SpearmanCorrCoef

METRICS: dict[str, Callable[[int], Metric]] = {
    "accuracy": lambda classes: MulticlassAccuracy(classes, average="micro"),
    "f1": lambda classes: BinaryF1Score(),
    "matthews_correlation": lambda classes: MulticlassMatthewsCorrCoef(classes),
    "pearson": lambda classes: PearsonCorrCoef(),
    "spearman": lambda classes: SpearmanCorrCoef(),
}
"""Name -> metric for that many classes. `f1` is of class 1 of two; correlations of scores need one output."""
