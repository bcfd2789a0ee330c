"""The Matthews correlation coefficient of predicted classes and labels."""

import torch
from torch import Tensor
from torchmetrics.classification import MulticlassConfusionMatrix


class MatthewsCorrelation(MulticlassConfusionMatrix):
    """Correlation of predicted classes with labels; 0 where either are all of one class, as in scikit-learn.

    torchmetrics has another value there: it adds an epsilon to each sum of the confusion matrix, which leaves about ±0.026
    of 1043 sentences (CoLA's), and gives 1 or -1 where all predictions are right or all are wrong.

    Source: Gorodkin, "Comparing two K-category assignments by a K-category correlation coefficient", 2004, equation 8.
    """

    def compute(self) -> Tensor:
        counts = self.confmat.double()  # [label, predicted]
        labels, predicted, n = counts.sum(1), counts.sum(0), counts.sum()
        covariance = counts.trace() * n - labels @ predicted
        spread = ((n**2 - labels @ labels) * (n**2 - predicted @ predicted)).sqrt()
        return covariance / spread if spread > 0 else torch.zeros_like(spread)
