"""What a Lightning Trainer gets besides settings: short last steps, progress, and exchange of gradients after backward."""

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytorch_lightning as pl
import torch
import torch.distributed as dist
from pytorch_lightning.callbacks import TQDMProgressBar
from pytorch_lightning.strategies import DDPStrategy
from torch import Tensor, nn
from torch.optim import Optimizer
from tqdm import tqdm

from sparsefront import distributed
from sparsefront.progress import bar
from sparsefront.tasks.lightning_modules import TRAIN_LOSS

# Gradient accumulation, also for an epoch's shorter last step.


class AverageLastStep(pl.Callback):
    """Lightning callback that averages the gradients of an epoch's last step over its actual number of batches.

    Lightning divides every loss by `accumulate_grad_batches`, which is too much for a shorter last step. Put it before all
    callbacks that read gradients.

    Args:
        batches: per optimizer step.
    """

    def __init__(self, batches: int) -> None:
        self.batches = batches
        self._accumulated = 0

    def on_train_batch_start(self, trainer: pl.Trainer, module: pl.LightningModule, batch: Any, batch_idx: int) -> None:
        self._accumulated = batch_idx % self.batches + 1  # batches of this step so far

    @torch.no_grad()
    def on_before_optimizer_step(self, trainer: pl.Trainer, module: pl.LightningModule, optimizer: Optimizer) -> None:
        if self._accumulated < self.batches:
            trained = [parameter for group in optimizer.param_groups for parameter in group["params"]]
            torch._foreach_mul_([one.grad for one in trained if one.grad is not None], self.batches / self._accumulated)


# Progress: a bar on a terminal, lines elsewhere; it shows the loss, which synchronizes with the GPU.

log = logging.getLogger(__name__)
SECONDS_BETWEEN_LINES = 60


class EpochBar(TQDMProgressBar):
    """Lightning's bar with epochs from 1 to n, known totals, and no version number of the logger's folder."""

    def init_train_tqdm(self) -> tqdm:
        return bar(description=self._epoch(), total=self.trainer.num_training_batches, unit="batch", leave=True)

    def init_validation_tqdm(self) -> tqdm:
        return bar(description="validation", total=sum(self.trainer.num_val_batches), unit="batch")

    def on_train_epoch_start(self, trainer: pl.Trainer, *_: Any) -> None:
        self.train_progress_bar.reset()
        self.train_progress_bar.set_description(self._epoch())

    def on_validation_batch_start(self, *_: Any) -> None:
        """Skip Lightning's dataloader index: there is only one."""

    def get_metrics(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> dict[str, Any]:
        metrics = super().get_metrics(trainer, pl_module)
        if (loss := trainer.callback_metrics.get(TRAIN_LOSS)) is not None:
            metrics = {TRAIN_LOSS: float(loss)} | metrics  # read only when the bar is refreshed
        return {name: value for name, value in metrics.items() if name != "v_num"}

    def _epoch(self) -> str:
        return f"epoch {self.trainer.current_epoch + 1} of {self.trainer.max_epochs}"


class EpochLines(pl.Callback):
    """Replaces the bar by a line after an epoch, if the last one was long enough ago."""

    def __init__(self) -> None:
        self._last = time.monotonic()

    def on_train_epoch_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        if trainer.is_global_zero and time.monotonic() - self._last >= SECONDS_BETWEEN_LINES:
            self._last = time.monotonic()
            metrics = {name: f"{float(value):.4g}" for name, value in sorted(trainer.callback_metrics.items())}
            told = ", ".join(f"{name} {value}" for name, value in metrics.items())
            log.info("epoch %d of %d: %s", trainer.current_epoch + 1, trainer.max_epochs, told)


# Exchange gradients after the backward pass instead of during it.


class ExchangeAfterBackward(DDPStrategy):
    """Lightning's strategy for existing ranks, without DDP's wrapper: the same gradients, bits and metrics.

    Floating-point buffers, such as BatchNorm statistics, are broadcast from rank 0 before every forward, as in DDP.

    Args:
        compress: exchange gradients as bf16, half the bytes.
        options: of `DDPStrategy`.
    """

    def __init__(self, *, compress: bool = False, **options: Any) -> None:
        super().__init__(**options)
        self._compress, self._accumulates = compress, False
        self._named: list[tuple[str, nn.Parameter]] = []
        self._exchanged: list[str] | None = None  # the parameters with gradients in the first step

    def configure_ddp(self) -> None:
        """Broadcast parameters and buffers of rank 0 instead of wrapping the module."""
        _broadcast([parameter.detach() for parameter in self.model.parameters()])
        self._named = [(name, one) for name, one in self.model.named_parameters() if one.requires_grad]
        self._share_buffers()

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        self._share_buffers()
        return super().training_step(*args, **kwargs)

    def validation_step(self, *args: Any, **kwargs: Any) -> Any:
        self._share_buffers()
        return super().validation_step(*args, **kwargs)

    @contextmanager
    def block_backward_sync(self) -> Iterator[None]:
        """Context for batches that are not followed by an optimizer step."""
        self._accumulates = True
        try:
            yield
        finally:
            self._accumulates = False

    def post_backward(self, closure_loss: Tensor) -> None:
        super().post_backward(closure_loss)
        if not self._accumulates:
            known = [(name, parameter) for name, parameter in self._named if parameter.grad is not None]
            self._require_the_same([name for name, _ in known])
            average_gradients([parameter for _, parameter in known], compress=self._compress)

    def _share_buffers(self) -> None:
        _broadcast([buffer for buffer in self.model.buffers() if buffer.is_floating_point()])

    def _require_the_same(self, names: list[str]) -> None:
        """Check that every rank has gradients of the same parameters in every step: they are exchanged by position.

        Raises:
            RuntimeError: names a parameter that has a gradient on some ranks or in some steps only.
        """
        if self._exchanged is None:
            for others in distributed.all_gather(names):
                _require_equal(names, others, "on all ranks")
            self._exchanged = names
        elif names != self._exchanged:
            _require_equal(names, self._exchanged, "in all steps")


def average_gradients(parameters: Sequence[nn.Parameter], *, compress: bool = False) -> None:
    """Replace this rank's gradients by the mean over ranks; a collective over the same parameters.

    Args:
        parameters: with gradients.
        compress: exchange them as bf16.
    """
    for dtype in dict.fromkeys(parameter.grad.dtype for parameter in parameters):
        alike = [parameter for parameter in parameters if parameter.grad.dtype == dtype]
        mean = torch.cat([parameter.grad.reshape(-1) for parameter in alike])
        if compress:
            mean = mean.to(torch.bfloat16)
        mean /= distributed.world_size()  # before the sum, as in DDP
        dist.all_reduce(mean)
        for parameter, values in zip(alike, _parts(mean.to(dtype), alike), strict=True):
            parameter.grad = values.view_as(parameter)


def _broadcast(tensors: Sequence[Tensor]) -> None:
    """Broadcast tensors from rank 0, all of one dtype at once."""
    for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
        alike = [tensor for tensor in tensors if tensor.dtype == dtype]
        together = torch.cat([tensor.reshape(-1) for tensor in alike])
        dist.broadcast(together, src=0)
        for tensor, values in zip(alike, _parts(together, alike), strict=True):
            tensor.copy_(values.view_as(tensor))


def _parts(together: Tensor, tensors: Sequence[Tensor]) -> Sequence[Tensor]:
    return together.split([tensor.numel() for tensor in tensors])


def _require_equal(names: list[str], others: list[str], where: str) -> None:
    if differ := sorted(set(names) ^ set(others)):
        raise RuntimeError(
            f"trainer.exchange_gradients=after_backward: parameter {differ[0]} has a gradient, but not {where}; "
            "use during_backward"
        )
