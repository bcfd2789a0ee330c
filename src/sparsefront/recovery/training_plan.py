"""What a recovery asks of the training loop."""

from dataclasses import dataclass

from sparsefront.training.optimization import Optimization


@dataclass(frozen=True)
class TrainingPlan:
    """Args:
    epochs: of recovery.
    optimization: optimizer and learning-rate curve; always starts with a fresh optimizer state.
    """

    epochs: int
    optimization: Optimization
