"""What a recovery asks of the training loop."""

from dataclasses import dataclass

from sparsefront.training.optimization import Optimization


@dataclass(frozen=True)
class TrainingPlan:
    """Args:
    epochs: of recovery.
    optimization: optimizer and learning-rate curve; always starts with a fresh optimizer state.
    lr_key: the setting that its peak rate comes from, or may be set by.
    """

    epochs: int
    optimization: Optimization
    lr_key: str = "recipe.lr"
