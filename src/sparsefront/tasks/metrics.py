"""Metrics of one label per input, in their own file because torchmetrics takes seconds to import."""

from collections.abc import Callable

import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.classification import BinaryF1Score, MulticlassAccuracy, MulticlassConfusionMatrix
from torchmetrics.regression import PearsonCorrCoef, SpearmanCorrCoef


class MatthewsCorrelation(MulticlassConfusionMatrix):
    """Correlation of predicted classes with labels; 0 if either is constant, as in scikit-learn.

    torchmetrics differs: it adds an epsilon to each sum of the confusion matrix, which gives about ±0.026 for constant
    predictions on 1043 sentences (CoLA), and 1 or -1 if all predictions are right or all are wrong.

    Source: Gorodkin, "Comparing two K-category assignments by a K-category correlation coefficient", 2004, equation 8.
    """

    def compute(self) -> Tensor:
        counts = self.confmat.double()  # [label, predicted]
        labels, predicted, n = counts.sum(1), counts.sum(0), counts.sum()
        covariance = counts.trace() * n - labels @ predicted
        spread = ((n**2 - labels @ labels) * (n**2 - predicted @ predicted)).sqrt()
        return covariance / spread if spread > 0 else torch.zeros_like(spread)


METRICS: dict[str, Callable[[int], Metric]] = {
    "accuracy": lambda classes: MulticlassAccuracy(classes, average="micro"),
    "f1": lambda classes: BinaryF1Score(),
    "matthews_correlation": lambda classes: MatthewsCorrelation(classes),
    "pearson": lambda classes: PearsonCorrCoef(),
    "spearman": lambda classes: SpearmanCorrCoef(),
}
"""Name -> metric for that many classes. `f1` is for class 1 of two; correlations of scores need one output."""
