"""Lightning callbacks that hold, apply or make masks during training, or accumulate scores."""

from collections.abc import Callable, Mapping
from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from sparsefront.errors import InvalidSetting
from sparsefront.importance.base import Importance
from sparsefront.masks.weight_view import as_matrix, fits, like_weight
from sparsefront.networks import layer_weight
from sparsefront.pruning.masked_weights import MaskedWeights
from sparsefront.pruning.masks import HeldMasks, hold, require_dict
from sparsefront.schedule.base import Schedule
from sparsefront.tasks.plain_task import require_network


class AccumulateScores(pl.Callback):
    """Calls the importance's `accumulate` for every layer at every optimizer step, with the weight before the step.

    The gradient is the one used by the step, before clipping: unscaled under AMP, averaged over ranks under DDP (so every
    rank has the same sum) and over the batches of an accumulated step. It is zero in a step that an AMP scaler skips because
    it overflowed.

    The sums are saved in checkpoints, and continue across several trainings with one callback.

    Args:
        net: the network that is trained.
        layers: names of its modules with a `weight`.
        importance: one with `accumulates`.
    """

    def __init__(self, net: nn.Module, layers: list[str], importance: Importance) -> None:
        self._modules = {name: net.get_submodule(name) for name in layers}
        self._accumulate = importance.accumulate
        self._sums: dict[str, Tensor] = {}

    def sums(self) -> dict[str, Tensor]:
        """Layer name -> float32 [N, K] on the weight's device; zero before the first step. Read-only: for a Linear it is
        the accumulator itself."""
        return {name: as_matrix(self._sum_of(name)) for name in self._modules}

    @torch.no_grad()
    def on_before_optimizer_step(self, trainer: pl.Trainer, module: pl.LightningModule, optimizer: Optimizer) -> None:
        finite = _all_finite(optimizer) if trainer.scaler is not None else None
        for name, layer in self._modules.items():
            weight = layer_weight(layer)
            gradient = weight.grad
            if gradient is None:
                continue
            if finite is not None:  # on the device: reading the result would synchronize every step
                gradient = torch.where(finite, gradient, torch.zeros_like(gradient))
            self._accumulate(self._sum_of(name), weight, gradient)

    def state_dict(self) -> dict[str, Any]:
        return {name: self._sum_of(name).to("cpu", copy=True) for name in self._modules}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._sums = {name: state_dict[name].clone() for name in self._modules}

    def _sum_of(self, name: str) -> Tensor:
        """The sum on the weight's current device: the network moves when training begins."""
        weight = layer_weight(self._modules[name])
        if name not in self._sums:
            self._sums[name] = torch.zeros_like(weight, dtype=torch.float32, requires_grad=False)
        elif self._sums[name].device != weight.device:
            self._sums[name] = self._sums[name].to(weight.device)
        return self._sums[name]


def _all_finite(optimizer: Optimizer) -> Tensor:
    """Bool scalar: False if an AMP scaler is going to skip this step."""
    gradients = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
    return torch.stack([gradient.isfinite().all() for gradient in gradients]).all()


class StraightThrough(pl.Callback):
    """Trains with W * M(W) in forward and backward, where M is made from W before every optimizer step; the step updates all W.

    The gradient of the masked weights is used for W (straight through the mask), and pruned weights decay towards zero, so
    that masks settle:

        W <- step of the optimizer on W with the gradient  dL/d(W * M) + decay * (1 - M) * W

    Between steps the layers hold W * M, during a step W. No module changes, so state dict, DDP and gradient checkpointing
    see plain parameters. Gradient clipping includes the decay term, and under AdamW so do the moments.

    Args:
        net: the network that is trained; holds W, unmasked, whenever no training or validation runs.
        layers: names of its modules with a `weight`.
        make_masks: layer name -> weight, to layer name -> bool mask, [N, K] or shaped like the weight.
        decay: lambda_W; 0 = the plain straight-through estimator.
    Source: Zhou et al., "Learning N:M Fine-grained Structured Sparse Neural Networks From Scratch", 2021, section 4
        (SR-STE).
    """

    def __init__(
        self,
        net: nn.Module,
        layers: list[str],
        *,
        make_masks: Callable[[Mapping[str, Tensor]], dict[str, Tensor]],
        decay: float,
    ) -> None:
        self._weights = {name: layer_weight(net.get_submodule(name)) for name in layers}
        self._make_masks, self.decay = make_masks, decay
        self._dense: dict[str, Tensor] = {}
        self._masks: dict[str, Tensor] = {}

    def on_train_batch_start(self, trainer: pl.Trainer, module: pl.LightningModule, batch: Any, batch_idx: int) -> None:
        if not self._dense:  # not again within an accumulated step
            self._mask()

    @torch.no_grad()
    def on_before_optimizer_step(self, trainer: pl.Trainer, module: pl.LightningModule, optimizer: Optimizer) -> None:
        for name, weight in self._weights.items():
            if weight.grad is None:  # frozen layer
                continue
            pruned = self._dense[name].masked_fill(self._masks[name], 0.0)
            weight.grad.add_(pruned, alpha=self.decay)
        self._unmask()

    def on_validation_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        self._mask()

    def on_validation_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        self._unmask()

    def masks(self) -> dict[str, Tensor]:
        """Make masks from the current weights: layer name -> bool, shaped like the weight."""
        made = self._make_masks({name: weight.detach() for name, weight in self._weights.items()})
        return {name: like_weight(made[name], weight) for name, weight in self._weights.items()}

    @torch.no_grad()
    def _mask(self) -> None:
        self._masks = self.masks()
        self._dense = {name: weight.detach().clone() for name, weight in self._weights.items()}
        for name, weight in self._weights.items():
            weight.mul_(self._masks[name])

    @torch.no_grad()
    def _unmask(self) -> None:
        for name, weight in self._weights.items():
            weight.copy_(self._dense[name])
        self._dense, self._masks = {}, {}


# Masks that are given: applied, tightened on schedule, and perhaps lifted; or held in a user's own fit.


class ApplyMasks(pl.Callback):
    """Zeroes pruned weights after every optimizer step, and remakes masks before the steps that the schedule names.

    Args:
        masked: the masks of the network, already at the round's initial sparsity.
        schedule: when masks change in a round.
        sparsity: the final one.
        make_masks: (sparsity, previous masks, shaped like the weights) -> masks for the network's current weights, within the
            previous ones.
        total_steps: optimizer steps of this training.
        dense_from: optimizer step, from 0, before which all masks are lifted; None = never.
    Raises:
        InvalidSetting: the schedule does not end at the final sparsity.
    """

    def __init__(
        self,
        masked: MaskedWeights,
        *,
        schedule: Schedule,
        sparsity: float,
        make_masks: Callable[[float, dict[str, Tensor]], dict[str, Tensor]],
        total_steps: int,
        dense_from: int | None = None,
    ) -> None:
        self.masked, self.make_masks, self.dense_from = masked, make_masks, dense_from
        self.due = schedule.updates_of(total_steps, sparsity)
        schedule.check_end(self.due[max(self.due)] if self.due else schedule.round_sparsities(sparsity)[-1], sparsity)
        if dense_from is not None:
            self.due[dense_from] = 0.0
        self.reached: list[tuple[int, float]] = []

    def on_train_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        self.masked.apply()
        self._handles = [self.masked.attach(optimizer) for optimizer in trainer.optimizers]

    def on_train_batch_start(self, trainer: pl.Trainer, module: pl.LightningModule, batch: Any, batch_idx: int) -> None:
        step = trainer.global_step
        if step in self.due:
            current = self.due.pop(step)  # once per step, even if it accumulates several batches
            self._lift() if step == self.dense_from else self._tighten(current)
            self.reached.append((step, self.masked.sparsity))
            module.log("train/sparsity", self.masked.sparsity)

    def on_train_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        for handle in self._handles:
            handle.remove()
        if self.due:
            raise RuntimeError(f"the training ended before steps {sorted(self.due)}, where masks were still to change")
        self.masked.check()

    def state_dict(self) -> dict[str, Any]:
        """The masks, which are in no state dict of the network, and the pending updates; both belong to a checkpoint."""
        return {"masks": self.masked.masks(), "due": list(self.due.items()), "reached": list(self.reached)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.masked.set(state_dict["masks"])
        self.due = dict(state_dict["due"])
        self.reached = [tuple(update) for update in state_dict["reached"]]

    def _tighten(self, sparsity: float) -> None:
        self.masked.set(self.make_masks(sparsity, self.masked.masks()))

    def _lift(self) -> None:
        self.masked.set({name: torch.ones_like(mask) for name, mask in self.masked.masks().items()})


class HoldMasks(pl.Callback):
    """Lightning callback that holds masks during a fit: `pl.Trainer(callbacks=[sf.HoldMasks(masks)])`.

    Args:
        masks: as in `hold`.
        net: the network with these layers; None: the LightningModule, or its only submodule that has all of them.
    Raises:
        InvalidSetting: no masks, or not a network; when the fit begins: masks do not fit, or no unique such submodule.
    """

    def __init__(self, masks: Mapping[str, Tensor], net: nn.Module | None = None) -> None:
        require_dict(masks)
        if net is not None:
            require_network(net)
        self.masks, self.net = masks, net
        self._held: HeldMasks | None = None

    def on_fit_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        self._held = hold(_part_with(module, self.masks) if self.net is None else self.net, self.masks)

    def on_exception(self, trainer: pl.Trainer, module: pl.LightningModule, exception: BaseException) -> None:
        self._release()

    def on_fit_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        self._release()

    def _release(self) -> None:
        if self._held is not None:
            self._held.remove()
        self._held = None


def _part_with(module: nn.Module, masks: Mapping[str, Tensor]) -> nn.Module:
    """The module, or its only submodule, with all masked layers and weights of matching shapes."""

    def has(part: nn.Module, name: str, mask: object) -> bool:
        layer: Any = part
        for step in name.split("."):
            layer = getattr(layer, "_modules", {}).get(step)
        weight = getattr(layer, "weight", None)
        return isinstance(weight, Tensor) and isinstance(mask, Tensor) and fits(mask, weight)

    owners = [part for part in module.modules() if all(has(part, name, mask) for name, mask in masks.items())]
    if len(owners) != 1:
        which = "no part" if not owners else f"{len(owners)} parts"
        allowed = (
            f"names layers that {which} of {type(module).__name__} has: give HoldMasks(masks, net=...) the network"
        )
        raise InvalidSetting("masks", "given", allowed)
    return owners[0]


class PeriodicMasks(pl.Callback):
    """Lightning callback that makes masks from the weights before step 0 and then every few optimizer steps.

    Args:
        weights: layer name -> trained parameter.
        make_masks: layer name -> weight, to layer name -> bool mask, [N, K] or shaped like the weight.
        every: number of steps.
    Attributes:
        by_weight: parameter -> its current mask, shaped like it.
    """

    def __init__(
        self,
        weights: Mapping[str, nn.Parameter],
        *,
        make_masks: Callable[[dict[str, Tensor]], dict[str, Tensor]],
        every: int,
    ) -> None:
        self._weights, self._make_masks, self.every = dict(weights), make_masks, every
        self.by_weight: dict[Tensor, Tensor] = {}
        self._made_at: int | None = None

    def make(self) -> dict[str, Tensor]:
        """Make masks from the current weights: layer name -> bool, shaped like the weight."""
        made = self._make_masks({layer: weight.detach() for layer, weight in self._weights.items()})
        return {layer: like_weight(mask, self._weights[layer]) for layer, mask in made.items()}

    def on_train_batch_start(self, trainer: pl.Trainer, module: pl.LightningModule, batch: Any, batch_idx: int) -> None:
        step = trainer.global_step
        if step % self.every == 0 and step != self._made_at:  # not again within an accumulated step
            self._set(self.make())
            self._made_at = step

    def state_dict(self) -> dict[str, Any]:
        """The masks: they come from earlier weights, which a checkpoint no longer has."""
        masks = {layer: self.by_weight[weight] for layer, weight in self._weights.items() if weight in self.by_weight}
        return {"masks": masks, "made_at": self._made_at}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._set(state_dict["masks"])
        self._made_at = state_dict["made_at"]

    def _set(self, masks: Mapping[str, Tensor]) -> None:
        self.by_weight.update(
            {self._weights[name]: mask.to(self._weights[name].device) for name, mask in masks.items()}
        )
