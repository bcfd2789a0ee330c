"""What a network is trained for and evaluated by: one LightningModule per task, the network being an argument."""

from sparsefront.tasks.registry import build_task

__all__ = ["build_task"]
