"""A training gives way to timings between its batches."""

from typing import Any

import pytorch_lightning as pl
import torch

from sparsefront.gpu_sharing.access import give_way


class GiveWay(pl.Callback):
    """Lightning callback: before a batch of training or validation, lets a process that waits to time have the GPU.

    Ranks of one training each look at their own GPU. One that pauses keeps the others waiting in their next exchange.

    Args:
        device: that this process trains on.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def on_train_batch_start(self, *_: Any) -> None:
        give_way(self.device)

    def on_validation_batch_start(self, *_: Any) -> None:
        give_way(self.device)
