"""What tests run in other processes than their own: importable by name, as those need it."""

import os
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytorch_lightning as pl
import torch
from torch import nn

import sparsefront as sf
from sparsefront import distributed
from sparsefront.allocation.per_layer import PerLayer
from sparsefront.data.digits import Digits
from sparsefront.importance.magnitude import Magnitude
from sparsefront.importance.movement import Movement
from sparsefront.importance.taylor import Taylor
from sparsefront.patterns.n_m import NM
from sparsefront.pruning.calibration import score_weights
from sparsefront.pruning.make_masks import make_masks
from sparsefront.pruning.masked_weights import MaskedWeights
from sparsefront.pruning.training_masks import AccumulateScores, ApplyMasks, StraightThrough
from sparsefront.recovery.distillation import Distillation
from sparsefront.recovery.rounds import RunContext
from sparsefront.schedule.gradual import Gradual
from sparsefront.tasks.classification import ImageClassification
from sparsefront.training.fit import fit, steps_per_epoch
from sparsefront.training.lightning_parts import average_gradients
from sparsefront.training.recipe import Optimization, Recipe
from sparsefront.training.trainer import TrainerSettings

LAYERS = ["1", "3"]
SPARSITY = 0.75


def statistics(folder: Path, loggers: list) -> dict:
    """What the functions of `ranks` give each rank."""
    own = torch.full((2, 3), float(distributed.rank() + 1))
    mask = own > 1
    summed, first, first_mask = distributed.all_reduce_sum(own), distributed.broadcast(own), distributed.broadcast(mask)
    (folder / "written.txt").write_text(str(distributed.rank()))
    net = torch.nn.Sequential(torch.nn.Linear(3, 2))
    masked = MaskedWeights(net, ["0"])
    masked.set({"0": torch.full((2, 3), distributed.rank() == 0)})
    told = {
        "count": distributed.world_size(),
        "index": distributed.rank(),
        "own": own,
        "total": summed,
        "first": first,
        "first_mask": first_mask,
        "held": masked.masks()["0"],
        "loggers": loggers,
        "folder": folder,
    }
    return {"told": distributed.all_gather(told)}


def fail(how: str, folder: Path, loggers: list) -> None:
    """Rank 1 (or 0) goes wrong while the other waits for it."""
    if how == "raises" and distributed.rank() == 1:
        raise ValueError("no room left")
    if how == "killed" and distributed.rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "rank 0" and distributed.rank() == 0:
        raise KeyError("rank 0's own")
    distributed.all_reduce_sum(torch.ones(1))


def wait_to_be_killed(pids: Path, folder: Path, loggers: list) -> None:
    """Every rank leaves its process id, then hangs."""
    (pids / str(distributed.rank())).write_text(str(os.getpid()))
    time.sleep(600)


def digits_net() -> torch.nn.Module:
    """Seeded; `LAYERS` are its prunable ones."""

    class Net(nn.Sequential):
        def forward(self, x):  # tasks call networks by the names of their inputs
            return super().forward(x)

    pl.seed_everything(0, verbose=False)
    return Net(nn.Flatten(), nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 32), nn.ReLU(), nn.Linear(32, 10))


def diverge_on_one_rank(trainer: TrainerSettings, folder: Path, loggers: list) -> None:
    """Rank 1's loss is NaN in its third step; gradients are averaged only afterwards."""

    class Broken(ImageClassification):
        steps = 0

        def training_loss(self, output, batch):
            self.steps += 1
            loss = super().training_loss(output, batch)
            # without a gradient, so that nothing of it reaches rank 0 but through what the ranks tell each other
            return loss + float("nan") if distributed.rank() == 1 and self.steps == 3 else loss

    data = Digits().data_module(batch_size=32, seed=0, cache_dir=folder)
    recipe = Recipe(epochs=1)
    task = Broken(digits_net(), num_classes=10, optimization=Optimization(recipe, lr=0.01, total_steps=6))
    fit(task, data, epochs=1, recipe=recipe, trainer=trainer, loggers=loggers, directory=folder, stage="dense")


def train_in_every_way(trainer: TrainerSettings, folder: Path, loggers: list) -> dict:
    """One epoch each of movement under averaged weights, of a teacher, and of masks made at every step: way -> the masks
    and weights of every rank, in rank order.
    """
    ends = {}
    for way in ("movement", "teacher", "every step"):
        net = digits_net()
        data = Digits().data_module(batch_size=32, seed=0, cache_dir=folder)
        steps = steps_per_epoch(data, trainer)
        recipe = Recipe(epochs=1, ema=0.5 if way == "movement" else None)
        task = ImageClassification(net, num_classes=10, optimization=Optimization(recipe, lr=0.01, total_steps=steps))
        masked = MaskedWeights(net, LAYERS)
        movement = AccumulateScores(net, LAYERS, Movement())
        importance = Movement() if way == "movement" else Magnitude()

        score = partial(
            score_weights, task, LAYERS, importance=importance, open_loader=data.train_dataloader, accumulator=movement
        )

        def masks_at(sparsity, previous=None, score=score):
            scores = score()
            return make_masks(scores, NM(m=4), PerLayer(), sparsity, final_sparsity=SPARSITY, previous=previous)

        refined = StraightThrough(net, LAYERS, make_masks=lambda weights: masks_at(SPARSITY), decay=2e-4)
        if way == "every step":
            callbacks = (refined,)
        else:
            masked.set(masks_at(0.0))
            apply_masks = ApplyMasks(
                masked, schedule=Gradual(updates=2), sparsity=SPARSITY, make_masks=masks_at, total_steps=steps
            )
            teacher = Distillation(digits_net(), hardness=0.5, temperature=2.0, hidden_states=1.0, hidden_layers=["3"])
            callbacks = (movement, apply_masks) if way == "movement" else (apply_masks, teacher)
        fit(
            task, data, epochs=1, recipe=recipe, trainer=trainer, loggers=loggers, directory=folder, callbacks=callbacks
        )
        if way == "every step":
            masked.set(refined.masks())
        own = {
            "masks": {name: mask.clone() for name, mask in masked.masks().items()},
            "weights": {name: value.detach().clone() for name, value in net.state_dict().items()},
        }
        ends[way] = distributed.all_gather(own)
    return ends


class PartlyUsed(torch.nn.Module):
    """Normalises batches; one layer is never used, and another one where `used` says so.

    Args:
        used: of a rank and a step from 0.
    """

    def __init__(self, used: Callable[[int, int], bool]) -> None:
        super().__init__()
        self.first, self.norm, self.last = torch.nn.Linear(64, 32), torch.nn.BatchNorm1d(32), torch.nn.Linear(32, 10)
        self.extra, self.idle = torch.nn.Linear(64, 10), torch.nn.Linear(3, 3)
        self.used, self.steps = used, 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.flatten(1)
        y = self.last(self.norm(self.first(x)).relu())
        if self.training:
            self.steps += 1
        return y + self.extra(x) if self.used(distributed.rank(), self.steps - 1) else y


def averaged(folder: Path, loggers: list) -> list[dict]:
    """The mean over two ranks of gradients of two parameters, exact and as bf16, in rank order."""
    found = {}
    for name, gradients in (
        ("exact", (torch.tensor([[1.0, 0.0], [2.0, 3.0]]), torch.tensor([[3.0, 0.0], [0.0, 5.0]]))),
        ("compressed", (torch.full((2, 2), 1 + 2**-12),) * 2),
    ):
        parameters = [torch.nn.Parameter(torch.zeros(2, 2)), torch.nn.Parameter(torch.zeros(3))]
        parameters[0].grad, parameters[1].grad = gradients[distributed.rank()].T.contiguous().T, torch.ones(3)
        average_gradients(parameters, compress=name == "compressed")
        found[name] = parameters[0].grad.clone()
    return distributed.all_gather(found)


def always(rank: int, step: int) -> bool:
    return True


def on_rank_0(rank: int, step: int) -> bool:
    return rank == 0


def from_the_second_step(rank: int, step: int) -> bool:
    return step > 0


def train_partly(trainer: TrainerSettings, used: Callable[[int, int], bool], folder: Path, loggers: list) -> list[dict]:
    """One epoch on the digits: what every rank has in the end, buffers too, in rank order."""
    pl.seed_everything(distributed.rank(), verbose=False)  # rank 0's weights count
    net, data = PartlyUsed(used), Digits().data_module(batch_size=32, seed=0, cache_dir=folder)
    if trainer.exchange_gradients == "during_backward":
        net.idle.requires_grad_(False)  # DDP waits for the gradient of every parameter
    recipe = Recipe(epochs=1, optimizer="sgd")
    optimization = Optimization(recipe, lr=0.05, total_steps=steps_per_epoch(data, trainer))
    task = ImageClassification(net, num_classes=10, optimization=optimization)
    fit(task, data, epochs=1, recipe=recipe, trainer=trainer, loggers=loggers, directory=folder)
    kept = {name: value.detach().clone() for name, value in net.state_dict().items() if "tracked" not in name}
    return distributed.all_gather(kept)


def train_gradually(trainer: TrainerSettings, epochs: int, folder: Path, loggers: list) -> dict:
    """Tighten taylor masks during some epochs on the digits; what every rank has in the end, in rank order."""
    net = digits_net()
    data = Digits().data_module(batch_size=32, seed=0, cache_dir=folder)
    steps = steps_per_epoch(data, trainer)
    recipe = Recipe(epochs=epochs, optimizer="sgd", weight_decay=1e-3, gradient_clip=None)
    optimization = Optimization(recipe, lr=0.05, total_steps=epochs * steps)
    task = ImageClassification(net, num_classes=10, optimization=optimization)
    seen, broadcast = [], []

    class Note(pl.Callback):
        def on_validation_end(self, trainer, module):
            seen.append({name: float(value) for name, value in trainer.callback_metrics.items()})
            broadcast.append(len(getattr(trainer.model, "modules_buffers", ())))  # of DDP

    def masks_at(sparsity, previous):
        scores = score_weights(task, LAYERS, importance=Taylor(batches=4), open_loader=data.train_dataloader)
        return make_masks(scores, NM(m=4), PerLayer(), sparsity, final_sparsity=SPARSITY, previous=previous)

    untrained = masks_at(SPARSITY, None)
    masked = MaskedWeights(net, LAYERS)
    masked.set(masks_at(0.0, None))
    apply_masks = ApplyMasks(
        masked, schedule=Gradual(updates=4), sparsity=SPARSITY, make_masks=masks_at, total_steps=epochs * steps
    )
    fit(
        task,
        data,
        epochs=epochs,
        recipe=recipe,
        trainer=trainer,
        loggers=loggers,
        directory=folder,
        callbacks=(apply_masks, Note()),
        resume_dir=folder / "unfinished",
    )
    end = {
        "steps": steps,
        "untrained": {name: mask.cpu() for name, mask in untrained.items()},
        "masks": {name: mask.cpu().clone() for name, mask in masked.masks().items()},
        "weights": {name: value.detach().cpu().clone() for name, value in net.state_dict().items()},
        "metrics": seen,
        "broadcast": broadcast,
        "reached": apply_masks.reached,
    }
    return {"ends": distributed.all_gather(end)}


def train_by_blocks(trainer: TrainerSettings, folder: Path, loggers: list) -> dict:
    """Backend of a recovery -> the weights that every rank ends with, in rank order."""
    ends = {}
    for backend in ("dense", "sparse"):
        net = digits_net()
        masks = sf.prune(net, "block_wise", 0.5, granularity=8, tell=len)
        data = Digits().data_module(batch_size=32, seed=0, cache_dir=folder)
        sf.recover(
            net,
            masks,
            data,
            backend=backend,
            recipe=Recipe(epochs=1, gradient_clip=None),
            trainer=trainer,
            task=lambda net, optimization: ImageClassification(net, num_classes=10, optimization=optimization),
            context=RunContext(folder, loggers=loggers),
        )
        ends[backend] = distributed.all_gather({name: value.clone() for name, value in net.state_dict().items()})
    return ends
