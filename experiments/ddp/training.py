"""The program of each rank: prune a BERT with random weights, then train it by the loop of all recoveries."""

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import pytorch_lightning as pl
import torch
import torch.distributed as dist
from torch import nn

from experiments.harness.measure import Kernel, covered_us, gpu_profile, kernels_of
from sparsefront import distributed
from sparsefront.data.base import DataInfo
from sparsefront.data.split_data import NoRows, Part, SplitData
from sparsefront.data.text import EncodedText, TextPart
from sparsefront.models.bert import SIZES, Bert
from sparsefront.networks import tensors_digest
from sparsefront.patterns.n_m import NM
from sparsefront.pruning.prune import prune
from sparsefront.recovery.base import Round
from sparsefront.recovery.finetune import Finetune
from sparsefront.recovery.recover import recover
from sparsefront.schedule.base import Schedule
from sparsefront.schedule.gradual import Gradual
from sparsefront.schedule.one_shot import OneShot
from sparsefront.tasks.classification import SequenceClassification
from sparsefront.tasks.lightning_modules import LightningTask
from sparsefront.training.recipe import Optimization, Recipe
from sparsefront.training.trainer import TrainerSettings

CLASSES, SPARSITY = 2, 0.5
BUCKET = 25 * 2**20  # bytes per DDP bucket
REPEATS = 10
EXCHANGE = "exchange"
KINDS = {  # the first match of a kernel's name counts
    EXCHANGE: re.compile("nccl", re.IGNORECASE),
    "generated": re.compile("^triton_"),  # by torch.compile; the rest of the name lists the fused operations
    "attention": re.compile("fmha|flash|cudnn.*sdpa|mha_", re.IGNORECASE),
    "products": re.compile("gemm|nvjet|cutlass|xmma|splitk", re.IGNORECASE),
    "optimizer": re.compile("multi_tensor|foreach|adam", re.IGNORECASE),
    "masks": re.compile("masked_fill", re.IGNORECASE),
    "copies": re.compile("memcpy|memset|copy", re.IGNORECASE),
}
OTHERS = "others"


@dataclass(frozen=True)
class Work:
    """The amount of training.

    Args:
        size: size of a BERT with random weights, or the folder of a checkpoint.
        batch: samples per device and step.
        length: tokens per sample, without padding.
        warmup: steps before the first window.
        steps, windows: steps per timed window, and number of windows.
        profiled: steps that are profiled afterwards.
    """

    size: str
    batch: int
    length: int
    warmup: int
    steps: int
    windows: int
    profiled: int = 0

    @property
    def timed_steps(self) -> int:
        """Steps up to the end of the last window."""
        return self.warmup + self.steps * self.windows

    @property
    def total_steps(self) -> int:
        return self.timed_steps + self.profiled

    @property
    def bert(self) -> Bert:
        return Bert(size=self.size) if self.size in SIZES else Bert(path=self.size)

    @property
    def name(self) -> str:
        return f"bert-{self.size}" if self.size in SIZES else Path(self.size).name


class Clock(pl.Callback):
    """Seconds of each window on this rank; the GPU is synchronized only between windows."""

    def __init__(self, work: Work) -> None:
        self.work, self.seconds = work, []
        self._start = 0.0

    def on_train_batch_start(
        self, trainer: pl.Trainer, module: pl.LightningModule, batch: Mapping, batch_idx: int
    ) -> None:
        if batch_idx == self.work.warmup:
            self._start = self._drained(module)

    def on_train_batch_end(
        self, trainer: pl.Trainer, module: pl.LightningModule, outputs: Any, batch: Mapping, batch_idx: int
    ) -> None:
        done = batch_idx + 1 - self.work.warmup
        if done > 0 and done % self.work.steps == 0 and len(self.seconds) < self.work.windows:
            now = self._drained(module)
            self.seconds.append(now - self._start)
            self._start = now

    @staticmethod
    def _drained(module: pl.LightningModule) -> float:
        if module.device.type == "cuda":
            torch.cuda.synchronize(module.device)
        return time.perf_counter()


def kind(name: str) -> str:
    """The kind of a kernel, by name."""
    return next((what for what, pattern in KINDS.items() if pattern.search(name)), OTHERS)


def step_times_ms(kernels: list[Kernel], steps: int, wall_s: float) -> dict[str, float]:
    """Milliseconds of one step.

    Returns:
        `wall_ms`; `idle_ms`, without any kernel; `exposed_ms`, with only the gradient exchange; then the time of each kind,
        whose sum may be larger, since kernels overlap.
    """
    per_step = 1e-3 / steps
    everything = covered_us(kernels)
    computing = covered_us(kernel for kernel in kernels if kind(kernel.name) != EXCHANGE)
    times = {"wall_ms": wall_s * 1e3 / steps, "idle_ms": wall_s * 1e3 / steps - everything * per_step}
    times["exposed_ms"] = (everything - computing) * per_step
    for what in (*KINDS, OTHERS):
        times[f"{what}_ms"] = covered_us(kernel for kernel in kernels if kind(kernel.name) == what) * per_step
    return {name: round(time, 3) for name, time in times.items()}


class ProfileSteps(pl.Callback):
    """Lightning callback that profiles some steps after a warm-up, with the GPU synchronized before and after them.

    Attributes:
        kernels, wall_s: of these steps; empty until then.
    """

    def __init__(self, warmup: int, steps: int) -> None:
        self.warmup, self.steps = warmup, steps
        self.kernels: list[Kernel] = []
        self.wall_s = 0.0

    def on_train_batch_start(self, trainer: pl.Trainer, module: pl.LightningModule, batch: Any, batch_idx: int) -> None:
        if batch_idx == self.warmup:
            self._profile = gpu_profile()
            self._profile.start()
            self._began, self._ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda.synchronize()
            self._began.record()

    def on_train_batch_end(
        self, trainer: pl.Trainer, module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if batch_idx == self.warmup + self.steps - 1:
            self._ended.record()
            torch.cuda.synchronize()
            self._profile.stop()
            self.wall_s = self._began.elapsed_time(self._ended) * 1e-3
            self.kernels = kernels_of(self._profile)


def exchange_times_ms(net: nn.Module) -> dict[str, float | str]:
    """Milliseconds of an all_reduce of as many values as the network has parameters, in fp32 and bf16; a collective call.
    Empty with one rank.
    """
    dtypes = {"exchange_alone_ms": torch.float32, "exchange_alone_bf16_ms": torch.bfloat16}
    if distributed.world_size() == 1:
        return dict.fromkeys(dtypes, "")
    size = sum(parameter.numel() for parameter in net.parameters())
    return {name: round(_exchange_ms(size, dtype), 3) for name, dtype in dtypes.items()}


def _exchange_ms(size: int, dtype: torch.dtype) -> float:
    """Median milliseconds, in pieces of DDP's bucket size."""
    piece = torch.zeros(BUCKET // 4, dtype=dtype, device="cuda")  # as many values as an fp32 bucket
    taken = []
    for _ in range(REPEATS + 2):
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        dist.barrier()
        began.record()
        for _ in range(-(-size // piece.numel())):
            dist.all_reduce(piece)
        ended.record()
        torch.cuda.synchronize()
        taken.append(began.elapsed_time(ended))
    return median(taken[2:])


def finetune_with(*watches: pl.Callback) -> Finetune:
    """The default recovery with additional callbacks."""

    class Watched(Finetune):
        def callbacks(self, round: Round) -> tuple[pl.Callback, ...]:
            return watches

    return Watched()


def random_text(rows: int, work: Work, vocabulary: int) -> SplitData:
    """Random tokens and labels, the same on every rank, without a held-out part."""
    draw = torch.Generator().manual_seed(0)
    tokens = torch.randint(1000, vocabulary, (rows * work.length,), generator=draw, dtype=torch.int32)
    text = EncodedText(
        tokens={"input_ids": tokens, "token_type_ids": torch.zeros_like(tokens)},
        starts=torch.arange(rows + 1) * work.length,
        columns={"labels": torch.randint(0, CLASSES, (rows,), generator=draw)},
    )

    def load(split: str) -> Part:
        return TextPart(text, 0, work.length, work.length) if split == "train" else NoRows()

    return SplitData(load, batch_size=work.batch, seed=0)


def train(work: Work, trainer: TrainerSettings, gradual: bool, folder: Path, loggers: list) -> list[dict[str, Any]]:
    """Prune 2:4 and recover; return the final state of every rank, in rank order, with its profile.

    Args:
        gradual: update the masks twice in training, by scores from each rank's batches; else they are fixed.
    """
    clock, watch = Clock(work), ProfileSteps(work.timed_steps, work.profiled)
    net, masks = pruned_and_recovered(work, trainer, gradual, clock, *((watch,) if work.profiled else ()))
    own = {
        "rank": distributed.rank(),
        "masks_sha256": tensors_digest(masks),
        "weights_sha256": tensors_digest(net.state_dict()),
        "kept": sum(int(mask.sum()) for mask in masks.values()) / sum(mask.numel() for mask in masks.values()),
        "seconds": clock.seconds,
    }
    if work.profiled:
        own["step"] = step_times_ms(watch.kernels, work.profiled, watch.wall_s)
        own["step"] |= {"launches": round(len(watch.kernels) / work.profiled)} | exchange_times_ms(net)
    return distributed.all_gather(own)


def pruned_and_recovered(
    work: Work, trainer: TrainerSettings, gradual: bool, *watches: pl.Callback
) -> tuple[nn.Module, dict[str, torch.Tensor]]:
    """The network after training with the callbacks `watches`, and its masks."""
    torch.manual_seed(0)
    model = work.bert
    net = model.build(DataInfo("sequence_classification", CLASSES, sequence_length=work.length))
    data = random_text(work.batch * trainer.devices * work.total_steps, work, net.config.vocab_size)
    device = torch.device(trainer.device)
    schedule: Schedule = Gradual(updates=2) if gradual else OneShot()

    def make_task(net: nn.Module, optimization: Optimization | None = None) -> LightningTask:
        return SequenceClassification(net, optimization, num_classes=CLASSES)

    masks = prune(
        net.to(device),
        NM(m=4),
        SPARSITY,
        importance="taylor" if gradual else "magnitude",
        schedule=schedule,
        layers=model.prunable(net),
        calibration=data.train_dataloader,
        task=make_task(net),
        tell=lambda line: None,
    )
    masks = recover(
        net,
        masks,
        data,
        recovery=finetune_with(*watches),
        recipe=Recipe(batch_size=work.batch, epochs=1, lr=1e-5),
        trainer=trainer,
        task=make_task,
    )
    return net, masks
