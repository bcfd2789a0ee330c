"""Settings of Lightning's Trainer that affect training, and the one place that builds it."""

import logging
import os
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import NonNegativeFloat, PositiveInt
from torch import nn

from sparsefront import distributed
from sparsefront.artifacts.durable import require_space
from sparsefront.errors import InvalidSetting
from sparsefront.settings_class import settings_class
from sparsefront.training.recipe import Recipe


def require_room(
    net: nn.Module, folder: Path, *, epochs: int, recipe: Recipe, keeps_epochs: bool, epoch_weights: bool
) -> None:
    """Check, before the first step, that the disk has room for this training.

    Args:
        folder: of the stage, in the cache.
        keeps_epochs: checkpoint after epochs.
        epoch_weights: store the weights at the start of each epoch.
    Raises:
        InvalidSetting: too little room; names what is free and what is needed.
    """
    weights = sum(tensor.numel() * tensor.element_size() for tensor in net.state_dict().values())
    needed = weights * (1 + (epochs if epoch_weights else 0))
    remedy = ""
    if keeps_epochs and epochs > 1:
        # a new checkpoint exists next to the old one before it replaces it
        needed += (
            2
            * weights
            * (1 + (2 if recipe.optimizer == "adamw" else int(recipe.momentum > 0)) + (recipe.ema is not None))
        )
        remedy = "or set trainer.checkpoint=false, which keeps the state of no epoch"
    require_space(folder.parent, needed, key="cache_dir", what="this training", remedy=remedy)


log = logging.getLogger(__name__)
GPU_BATCHES_SHOWN = 10  # batches between refreshes on a GPU
PROCESSES_A_CORE = 4  # limit of CPU processes per core, for trying out multi-GPU runs


@settings_class()
class TrainerSettings:
    """Settings of group `trainer`.

    Args:
        accelerator: auto uses a GPU if there is one.
        devices: processes that train together (DDP), one per GPU, or on the CPU; each reads its own batches, so an optimizer
            step takes `devices * num_nodes * accumulate_grad_batches` of them.
        num_nodes: nodes that train together, each with `devices` devices; the same command runs on each: see `machines`.
        exchange_gradients: with several devices. during_backward is PyTorch's DDP, which overlaps buckets with the backward
            pass. after_backward is a single exchange with fewer launches, for GPUs that wait for Python rather than for the
            exchange, as GPUs of one host often do.
        ddp_comm_hook: bf16_compress exchanges gradients in bf16, half the bytes; null = fp32.
        compile: what to torch.compile in training steps: blocks (separately, sharing code if identical) or network (all at
            once, which takes longer to compile). For steps limited by Python; compiling takes about as long as some hundred
            steps. Results differ by rounding. auto: blocks, on one GPU, where the first steps are faster and enough are left.
        cuda_graphs: capture the forward and the backward pass of the network and its teacher for each batch size, one launch
            each: for steps limited by Python, as with sparse kernels, on one GPU without gradient accumulation. auto: where the
            first steps are faster. Neither is chosen with `deterministic`, as times decide. A forward that draws on the CPU is
            not captured; one that changes Python values of its own, such as a counter, needs false: replays do not run Python.
            Evaluations are captured unless it is false.
        deterministic: equal runs on the same kind of GPU and versions give bitwise equal weights. Some operations are slower,
            and a few are unsupported (training then ends with a message).
        precision: auto is 32-true on a CPU, bf16-mixed on a GPU with bf16, 16-mixed on an older one.
        accumulate_grad_batches: batches averaged into one optimizer step, fewer in an epoch's last step if they do not divide
            its batches; schedules count optimizer steps.
        limit_batches: maximum number of batches per epoch for training and validation; null = all (for trials and tests).
        checkpoint: save the state at ends of epochs and rounds, so that a killed training resumes from there.
        checkpoint_seconds: least time between saved states; a kill loses at most this and an epoch. 0 = every epoch and round.
        progress_bar: false silences all bars, including evaluation and tokenization. There are none without a terminal.
    """

    accelerator: Literal["auto", "cpu", "gpu"] = "auto"
    devices: PositiveInt = 1
    num_nodes: PositiveInt = 1
    exchange_gradients: Literal["during_backward", "after_backward"] = "during_backward"
    ddp_comm_hook: Literal["bf16_compress"] | None = None
    compile: Literal["auto", "none", "blocks", "network"] = "auto"
    cuda_graphs: bool | Literal["auto"] = "auto"
    deterministic: bool = False
    precision: Literal["auto", "32-true", "16-mixed", "bf16-mixed"] = "auto"
    accumulate_grad_batches: PositiveInt = 1
    limit_batches: PositiveInt | None = None
    checkpoint: bool = True
    checkpoint_seconds: NonNegativeFloat = 600.0
    progress_bar: bool = True

    def check(self) -> None:
        """Check that the required GPU exists; warn if there are more processes than CPU cores.

        Raises:
            InvalidSetting: accelerator gpu without one, more devices than GPUs or than cores can take, fp16 on a CPU, a hook
                without several GPUs, another exchange with one device, graphs without a GPU or with several, or no compiler.
        """
        gpu_count = torch.cuda.device_count()
        if self.accelerator == "gpu" and gpu_count == 0:
            raise InvalidSetting("accelerator", "gpu", "torch finds no CUDA device here; use auto or cpu")
        if self.on_gpu and self.devices > gpu_count:
            raise InvalidSetting("devices", self.devices, f"torch finds {gpu_count} CUDA device(s) here")
        cores = os.cpu_count() or 1
        most = PROCESSES_A_CORE * cores
        if not self.on_gpu and self.devices > most:
            raise InvalidSetting(
                "devices", self.devices, f"trains on the CPU, whose cores take at most {most} processes"
            )
        if not self.on_gpu and self.devices > cores and distributed.world_size() == 1:  # not in every process
            log.warning(
                "trainer.devices=%d: this CPU has %d cores, so the processes wait for each other", self.devices, cores
            )
        if self.precision == "16-mixed" and not self.on_gpu:  # Lightning would use bf16 instead
            raise InvalidSetting("precision", self.precision, "needs a GPU; a CPU takes auto, 32-true or bf16-mixed")
        if self.ddp_comm_hook is not None and (self.world_size == 1 or not self.on_gpu):  # Lightning ignores it on CPUs
            raise InvalidSetting(
                "ddp_comm_hook", self.ddp_comm_hook, "is for several GPUs that train together; use null"
            )

        if self.exchange_gradients != "during_backward" and self.world_size == 1:
            raise InvalidSetting(
                "exchange_gradients",
                self.exchange_gradients,
                "is for several devices that train together; use during_backward",
            )
        if self.compile not in ("auto", "none"):
            from sparsefront.training.compilation import why_unavailable

            why = why_unavailable(self.on_gpu)
            if why is not None:
                raise InvalidSetting("compile", self.compile, f"{why}; use none")
        if self.cuda_graphs is True and not (self.on_gpu and self.world_size == 1):
            raise InvalidSetting("cuda_graphs", True, "is for trainings on one GPU; use false")
        if self.cuda_graphs is True and self.accumulate_grad_batches > 1:
            allowed = f"takes a step for each batch: not with accumulate_grad_batches={self.accumulate_grad_batches}"
            raise InvalidSetting("cuda_graphs", True, allowed)
        if self.deterministic:
            from sparsefront.training.compilation import fix_workspace

            fix_workspace()

    @property
    def on_gpu(self) -> bool:
        return self.accelerator == "gpu" or (self.accelerator == "auto" and torch.cuda.is_available())

    @property
    def world_size(self) -> int:
        """Number of processes that train together."""
        return self.devices * self.num_nodes

    @property
    def device(self) -> str:
        """Device of single-process stages (calibration, masks): cuda or cpu."""
        return "cuda" if self.on_gpu else "cpu"

    @property
    def real_precision(self) -> str:
        """The precision with `auto` resolved."""
        if self.precision != "auto":
            return self.precision
        if not self.on_gpu:
            return "32-true"
        return "bf16-mixed" if torch.cuda.is_bf16_supported() else "16-mixed"

    @property
    def product_dtype(self) -> torch.dtype:
        """The dtype of the training's products."""
        return {"16-mixed": torch.float16, "bf16-mixed": torch.bfloat16}.get(self.real_precision, torch.float32)

    @property
    def fuses_optimizer(self) -> bool:
        """Whether a fused optimizer may be used: on a GPU without a loss scaler, which would hand it scaled gradients that
        must be read and clipped before.
        """
        return self.on_gpu and self.real_precision != "16-mixed"

    def faster_steps(self, *, tries: bool) -> list[Any]:
        """Callbacks that replace steps launched from Python.

        Args:
            tries: whether auto means to try; False = the fastest that this trainer can capture, without a trial.
        """
        from sparsefront.training.compilation import ChooseSteps, CompileSteps, why_unavailable

        may_try = self.on_gpu and self.world_size == 1 and not self.deterministic
        captures = may_try and self.accumulate_grad_batches == 1 and self.cuda_graphs == "auto"
        what = "none" if self.compile == "auto" else self.compile
        graphs = self.cuda_graphs is True or (captures and not tries)
        blocks = may_try and self.compile == "auto" and why_unavailable(on_gpu=True) is None
        callbacks: list[Any] = [CompileSteps(what, graphs=graphs)] if what != "none" or graphs else []
        if tries and (blocks or captures):
            callbacks.append(ChooseSteps(blocks=blocks, graphs=captures))
        return callbacks

    @property
    def lays_channels_last(self) -> bool:
        """Whether convolutions use channels_last: for 16-bit products. Not if gradients are exchanged after the backward pass:
        they are contiguous then, and a fused optimizer cannot use them for such filters.
        """
        return self.on_gpu and self.real_precision != "32-true" and self.exchange_gradients == "during_backward"

    def cache_key(self) -> dict[str, Any]:
        """The settings that affect trained weights, for the cache keys of stages."""
        exchange: dict[str, str] = {} if self.ddp_comm_hook is None else {"ddp_comm_hook": self.ddp_comm_hook}
        if self.exchange_gradients != "during_backward":
            exchange["exchange_gradients"] = self.exchange_gradients
        tries = self.on_gpu and self.world_size == 1 and not self.deterministic
        code = {} if self.compile == "none" or (self.compile == "auto" and not tries) else {"compile": self.compile}
        captures = self.cuda_graphs is True or (
            self.cuda_graphs == "auto" and tries and self.accumulate_grad_batches == 1
        )
        graphs = {"cuda_graphs": self.cuda_graphs} if captures else {}
        order = {"deterministic": True} if self.deterministic else {}
        return {
            **exchange,
            **code,
            **graphs,
            **order,
            "device": self.device,
            "devices": self.world_size,
            "precision": self.real_precision,
            "accumulate_grad_batches": self.accumulate_grad_batches,
            "limit_batches": self.limit_batches,
        }

    def build(
        self, *, epochs: int, gradient_clip: float | None, callbacks: list, loggers: list, directory: Path
    ) -> Any:
        """Build a Trainer that writes only its loggers' files: the pipeline stores finished stages.

        Raises:
            RuntimeError: more devices than ranks: see `training.ranks.other_ranks_running`.
        """
        import pytorch_lightning as pl

        from sparsefront import progress
        from sparsefront.training.lightning_parts import EpochBar, EpochLines

        bars = self.progress_bar and progress.shows()
        return pl.Trainer(
            accelerator="gpu" if self.on_gpu else "cpu",
            devices=self.devices,
            num_nodes=self.num_nodes,
            strategy=self._strategy(),
            use_distributed_sampler=False,  # `TrainingData` distributes the batches
            precision=self.real_precision,
            max_epochs=epochs,
            limit_train_batches=self.limit_batches if self.limit_batches is not None else 1.0,
            limit_val_batches=self.limit_batches if self.limit_batches is not None else 1.0,
            num_sanity_val_steps=0,
            gradient_clip_val=gradient_clip,
            accumulate_grad_batches=self.accumulate_grad_batches,
            callbacks=[
                EpochBar(refresh_rate=GPU_BATCHES_SHOWN if self.on_gpu else 1) if bars else EpochLines(),
                *callbacks,
            ],
            logger=loggers or False,
            enable_checkpointing=False,
            enable_model_summary=False,
            enable_progress_bar=bars,
            log_every_n_steps=10,
            default_root_dir=directory,
        )

    def _strategy(self) -> Any:
        """Lightning's default for one device; DDP with the existing ranks for several."""
        if self.world_size == 1:
            return "auto"
        from pytorch_lightning.plugins.environments import LightningEnvironment

        if distributed.world_size() != self.world_size:
            raise RuntimeError(
                f"devices={self.world_size}, but {distributed.world_size()} ranks train: call it in other_ranks_running"
            )
        if self.exchange_gradients == "after_backward":
            from sparsefront.training.lightning_parts import ExchangeAfterBackward

            compress = self.ddp_comm_hook is not None
            return ExchangeAfterBackward(compress=compress, cluster_environment=LightningEnvironment())
        from pytorch_lightning.strategies import DDPStrategy
        from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook

        # gradients are views into the buckets, which saves a copy
        hook = None if self.ddp_comm_hook is None else bf16_compress_hook
        return DDPStrategy(cluster_environment=LightningEnvironment(), gradient_as_bucket_view=True, ddp_comm_hook=hook)
