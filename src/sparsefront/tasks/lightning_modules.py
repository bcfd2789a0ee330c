"""Tasks and a batch loop as Lightning's modules, for training. What prunes, times or exports a network does not import this."""

import logging
import warnings
from typing import Any

from pytorch_lightning import LightningDataModule, LightningModule
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from sparsefront.progress import counted
from sparsefront.tasks.base import Batch, Evaluator, Task, with_square_mask
from sparsefront.tasks.plain_task import NamedBatches, PlainTask, leaves_of, require_gradient

log = logging.getLogger(__name__)
TRAIN_LOSS = "train/loss"
"""Name under which the loss of a training step is logged."""


class LightningTask(Task, LightningModule):
    """A task with Lightning's steps of training and validation."""

    _evaluator: Evaluator | None = None

    def configure_optimizers(self) -> Any:
        if self.optimization is None:
            raise ValueError("this task was built to evaluate, without an optimization: it cannot be trained")
        return self.optimization.build(self.get_trained())

    def configure_gradient_clipping(
        self, optimizer: Optimizer, gradient_clip_val: float | None = None, gradient_clip_algorithm: str | None = None
    ) -> None:
        """Clip by global norm. Lightning's own raises for fused optimizers, even without a loss scaler: see
        `TrainerSettings.fuses_optimizer`.
        """
        if gradient_clip_val:
            trained = [parameter for group in optimizer.param_groups for parameter in group["params"]]
            nn.utils.clip_grad_norm_(trained, gradient_clip_val)

    def on_fit_start(self) -> None:
        if not self.net.training:  # pretrained networks arrive in eval mode, which would disable dropout
            self.net.train()  # in a network in training mode, frozen modules stay in eval mode

    def training_step(self, batch: Batch, batch_index: int) -> Tensor:
        output = self.call(self.net, with_square_mask(self.net_inputs(batch), self.net))
        loss = self.training_loss(output, batch)
        # Not with `prog_bar`: Lightning would read the loss, and so synchronize with the GPU, in every step.
        self.log(TRAIN_LOSS, loss, batch_size=len(next(iter(batch.values()))))
        return loss

    def on_validation_epoch_start(self) -> None:
        self._evaluator = self.evaluator(self.trainer.datamodule, "val")

    def validation_step(self, batch: Batch, batch_index: int) -> None:
        self._evaluator.update(self(batch), batch)

    def on_validation_epoch_end(self) -> None:
        metrics = self._evaluator.compute()
        self.log_dict({f"val/{name}": value for name, value in metrics.items()}, prog_bar=True)
        self._evaluator = None


class LightningPlainTask(PlainTask, LightningTask):
    """A plain task with Lightning's steps; warns of parameters that only its loss reads."""

    _looked = False

    def training_step(self, batch: Batch, batch_index: int) -> Tensor:
        loss = super().training_step(batch, batch_index)
        require_gradient(loss)
        if not self._looked:
            self._looked = True
            known = {id(parameter) for parameter in self.get_trained().parameters()}
            others = [tuple(leaf.shape) for leaf in leaves_of(loss) if id(leaf) not in known]
            if others:
                message = "loss: %s that it reads, of shape %s, not trained: give a Module with them as the loss"
                log.warning(message, counted(len(others), "parameter"), ", ".join(map(str, others[:3])))
        return loss


class LightningBatches(NamedBatches, LightningDataModule):
    """Batches of a training loop as a data module."""

    def val_dataloader(self) -> DataLoader:
        """Empty: a plain training loop does not validate."""
        warnings.filterwarnings("ignore", message="Total length of `DataLoader` across ranks is zero")
        return DataLoader([])
