"""`sf.recover`: run any recovery on a plain network, data loader and loss."""

import copy
import logging
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass, replace
from functools import partial
from numbers import Integral, Real
from pathlib import Path

import pytorch_lightning as pl
import torch
from torch import Tensor, nn

from sparsefront import distributed
from sparsefront.errors import InvalidSetting
from sparsefront.models.checkpoint import misfit_of
from sparsefront.models.linears import as_linears
from sparsefront.networks import in_eval_mode, keep_modes, unwrap
from sparsefront.options import option, program_command
from sparsefront.patterns.base import Pattern
from sparsefront.patterns.element_wise import ElementWise
from sparsefront.pruning.layers import require_no_groups, weighted_layers
from sparsefront.pruning.make_masks import PruningSettings
from sparsefront.pruning.masked_weights import require_none_dense
from sparsefront.pruning.masks import Masks, masks_left, require_masks_of
from sparsefront.recovery.base import Backend, Recovery, RecoverySetup, StateDict, sparse_backend
from sparsefront.recovery.rounds import RunContext, Source, run_rounds
from sparsefront.schedule.one_shot import OneShot
from sparsefront.tasks.lightning_modules import LightningBatches, LightningPlainTask, LightningTask
from sparsefront.tasks.plain_task import (
    ClassDims,
    Loss,
    device_of,
    module_of,
    require_callable,
    require_instance,
    require_network,
    training_loader,
)
from sparsefront.training.recipe import Optimization, Recipe
from sparsefront.training.resume import random_state, set_random_state
from sparsefront.training.trainer import TrainerSettings

log = logging.getLogger(__name__)

Network = nn.Module | Callable[[], nn.Module]
"""A network, or a function that returns a new copy of it."""

Data = Iterable | pl.LightningDataModule | Callable[[int], Iterable | pl.LightningDataModule]
"""Training batches, or a function that returns those of each round (from 0)."""


def recover(
    net: nn.Module,
    masks: Mapping[str, Tensor],
    train_dataloader: Data,
    loss: Loss | None = None,
    *,
    recovery: str | Recovery = "finetune",
    epochs: int | None = None,
    lr: float | None = None,
    backend: Backend | None = None,
    dense_after: float | None = None,
    recipe: Recipe | None = None,
    trainer: TrainerSettings | None = None,
    dense_net: Network | None = None,
    initial_net: Network | None = None,
    epoch_weights: Mapping[int, StateDict] | None = None,
    prunable: Callable[[nn.Module], list[str]] = weighted_layers,
    task: Callable[[nn.Module, Optimization | None], LightningTask] | None = None,
    context: RunContext | None = None,
) -> Masks:
    """Train the surviving weights (or update them in closed form) in place. Pruned weights stay exactly zero unless
    `dense_after` lifts the masks.

    Args:
        net: the network returned by `prune`; obs_update, least_squares, sparse_swaps and cast restore the dense weights
            first. In training mode, submodules in eval mode, such as a frozen BatchNorm, stay so; in eval mode, all of it
            trains. All modes are restored at the end.
        masks: from `prune` or `load`, or any dict of layer name -> bool mask, which then never changes.
        train_dataloader: batches (inputs, target), inputs only, or dicts by name. A DataLoader or another iterable with a
            length is iterated in every epoch; batches of others are copied to memory, at most `limit_batches` of the trainer
            and what the recovery asks for. A LightningDataModule is prepared and set up for its training loader. Or a
            function: index of a round, from 0 -> one of these.
        loss: (output, target) -> scalar; for dict batches the target is the batch. None: the output's own `loss`. Parameters of
            a Module are trained, too.
        recovery: finetune, lr_rewind, weight_rewind, distill, square_head, obs_update, least_squares, sparse_swaps, sr_ste, cast
            or none, or an instance with settings.
        epochs, lr: override the recipe: epochs of all rounds together (of each, when rewinding) and peak learning rate. Not
            allowed if the recovery sets its own or trains nothing.
        backend: overrides the recovery's: dense, sparse (trains only kept weights, for blocks and tiles) or auto (the faster
                one); None = as the recovery has it, dense by default.
        dense_after: overrides the recovery's (finetune, lr_rewind, distill): fraction of the optimizer steps, between 0 and
            1, after which the masks are lifted and all weights train; None = as the recovery has it, never by default.
        recipe: optimizer, learning-rate curve, weight decay; None = AdamW, linear decay, 3 epochs at 1e-3. For rewinding,
            the recipe of the dense training.
        trainer: accelerator, precision, gradient accumulation; None = Lightning's choice, without checkpoints. Several
            devices need the processes of `python run.py`; here there is one.
        dense_net: the trained network before pruning: the teacher of distill, square_head and cast, and the start of
            obs_update, least_squares, sparse_swaps and cast. Distillation compares softmax distributions over the dim along
            which adding a constant does not change the loss, else the outputs themselves, by squared difference.
        initial_net: the network before the dense training, the start of sr_ste.
        epoch_weights: epoch of the dense training, from 0 -> the weights at its start, for weight_rewind.
        prunable: returns the prunable layers; distill may compare hidden states of their blocks.
        task: replaces `loss` for tasks and data modules of this package: (net, optimization) -> task.
        context: folders, loggers and seeds of a training that survives a killed process: the same call then resumes from
            `context.resume_dir` if `trainer.checkpoint` is on. Different weights, masks or settings are rejected; data and
            loss are not compared. The folder is emptied at the end.
    Returns:
        the final masks, with a record of each round in `rounds`. They are new if the schedule tightens them, keep every
        weight after `dense_after`, and are otherwise the given ones.
    Raises:
        InvalidSetting: an argument is invalid, missing for this recovery, or conflicts with another one.
        Diverged: the loss or the weights are not finite.
    """
    net = unwrap(net)
    require_network(net)
    held = masks_left(net, masks)
    require_masks_of(net, held)
    require_none_dense(net, held, "masks", "given")
    _require_types(loss, recipe, trainer, context)
    if task is None and recipe is not None and recipe.label_smoothing:
        allowed = (
            "is of the program's losses; smooth labels in your own: torch.nn.CrossEntropyLoss(label_smoothing=...)"
        )
        raise InvalidSetting("recipe.label_smoothing", recipe.label_smoothing, allowed)
    if callable(train_dataloader):
        allowed = "is batches, or a function: number of a round -> batches"
        require_callable("train_dataloader", train_dataloader, "round", allowed=allowed)
    require_callable("prunable", prunable, "net", allowed="is a function: net -> names of layers")
    if task is not None and not callable(task):
        raise InvalidSetting("task", type(task).__name__, "is a function (net, optimization) -> task, or None")
    known, chosen = Masks.of(masks), _with_own(option("recovery", recovery, Recovery), backend, dense_after)
    pruning = known.pruning or PruningSettings(_pattern_of(held, chosen), known.sparsity)
    optional = {"dense_net": dense_net, "initial_net": initial_net, "epoch_weights": epoch_weights}
    for name in ("dense_net", "initial_net"):
        if optional[name] is not None and not isinstance(optional[name], nn.Module):
            require_callable(
                name, optional[name], allowed="is a torch.nn.Module, or a function without arguments that gives one"
            )
    _require_weights(epoch_weights)
    chosen.check_pattern(pruning.pattern)
    if chosen.reads_inputs:
        require_no_groups(net, held, chosen.name)
    for name in chosen.needs:
        if optional[name] is None:
            raise InvalidSetting(name, None, f"recovery={chosen.name} needs it: see sf.recover")
    if chosen.store_teacher and task is None:
        raise InvalidSetting(
            "store_teacher", True, "is of runs, which know the rows of a batch: give a teacher as dense_net"
        )
    for name, value in (("epochs", epochs), ("lr", lr)):
        _require_heeded(name, value, chosen)
    trainer = trainer or TrainerSettings(checkpoint=False)
    _require_ranks(trainer, chosen, library=context is None)
    trained, initial = (net if optional is None else optional for optional in (dense_net, initial_net))
    taken = known.spec.blocks is not None  # whole blocks were removed, so the teacher has more
    smaller = taken or bool(known.spec.structure)
    setup = RecoverySetup(
        pruning=pruning,
        recipe=_recipe(recipe, epochs, lr),
        trainer=trainer,
        architecture=partial(_fresh, trained, "dense_net") if smaller else lambda: net,
        prunable=prunable,
        epoch_weights=epoch_weights is not None,
        lr_argument="lr" if task is None and getattr(chosen.training, "lr", None) is None else None,
    )
    _require_trainable(net, chosen, setup)
    chosen.check_schedule(pruning.schedule, pruning.sparsity)
    chosen.check(setup)
    setup.trainer.check()
    data_of_round = _data_of_round(train_dataloader, net, chosen, setup, named=task is not None)
    dims = None
    if task is None and chosen.reads_logits:
        first = data_of_round(0)
        dims = _require_logits(net, loss, first, chosen)
        data_of_round = partial(_after_first, first, data_of_round)
    if initial_net is not None and (not smaller or "initial_net" in chosen.needs):
        _require_same(_fresh(initial, "initial_net"), net, "initial_net")
    if chosen.starts_dense:
        _start_dense(net, trained)
    source = Source(
        data_of_round=data_of_round,
        make_task=partial(task or partial(_plain_task, loss, dims), net),
        dense_net=partial(_fresh, trained, "dense_net"),
        initial_net=partial(_fresh, initial, "initial_net"),
        epoch_weights=epoch_weights or {},
    )
    device, criterion = device_of(net), module_of(loss)
    loss_device = None if criterion is None else device_of(criterion)
    with keep_modes(net), tempfile.TemporaryDirectory(prefix="sparsefront-") as scratch:
        result = run_rounds(
            net, dict(held), known.spec, chosen, setup, source, context or RunContext(folder=Path(scratch))
        )
    net.to(device)
    if criterion is not None:
        criterion.to(loss_device)
    records = result.records
    if taken:  # the network lacks these layers; the masks describe the network before
        records = tuple(replace(record, sparsity_achieved=known.sparsity) for record in records)
    left = {name: mask.to(device) for name, mask in (known if taken else result.masks).items()}
    # the schedule has ended: further training keeps these masks
    done = known.pruning and replace(known.pruning, schedule=OneShot())
    spec = known.spec.of_dense(left) if chosen.leaves_dense else known.spec
    return Masks(left, pruning=done, spec=spec, ignored=known.ignored, dense=known.dense, rounds=records)


OF_RECOVERIES = {
    "backend": "is a setting of recoveries that train, which recovery={} does not",
    "dense_after": "is a setting of finetune, lr_rewind and distill, not of recovery={}",
}


def _with_own(recovery: Recovery, backend: Backend | None, dense_after: float | None) -> Recovery:
    """Replace these settings of the recovery; raises InvalidSetting if it lacks one or the value is invalid."""
    own: set[str] = {setting.name for setting in fields(recovery)} if is_dataclass(recovery) else set()
    replacements = {"backend": backend, "dense_after": dense_after}
    for name, value in replacements.items():
        if value is not None and name not in own:
            raise InvalidSetting(name, value, f"{OF_RECOVERIES[name].format(recovery.name)}: leave it out")
    chosen = {name: value for name, value in replacements.items() if value is not None}
    return replace(recovery, **chosen) if chosen else recovery  # type: ignore[type-var]  # a dataclass with these fields


def _pattern_of(masks: Mapping[str, Tensor], recovery: Recovery) -> Pattern:
    """The pattern of plain masks: blocks if the backend trains blocks and all masks consist of them, else single weights."""
    if getattr(recovery, "backend", "dense") == "dense":
        return ElementWise()
    return sparse_backend().pattern_of_blocks(masks) or ElementWise()


def _data_of_round(
    given: Data, net: nn.Module, recovery: Recovery, setup: RecoverySetup, *, named: bool
) -> Callable[[int], pl.LightningDataModule]:
    """Return a function from a round's index (from 0) to its data.

    Args:
        named: data modules are from this package, with batches named like the network's arguments.
    """
    most, anew = _most_batches(recovery, setup), recovery.training is not None
    pruning = setup.pruning
    rescored = pruning.schedule.in_training and pruning.importance.source in ("gradients", "inputs")

    def open_data(data: Iterable | pl.LightningDataModule) -> pl.LightningDataModule:
        if isinstance(data, pl.LightningDataModule):
            if named:
                return data
            data = training_loader(data)
        batches = LightningBatches(data, net, argument="train_dataloader", most=most, anew=anew)
        if anew and rescored and batches.opens_once:
            allowed = (
                f"importance={pruning.importance.name} scores weights during the training, on batches of a second loader, which "
                "this one's own iteration may not allow: give a plain DataLoader, or a list of batches"
            )
            raise InvalidSetting("train_dataloader", type(data).__name__, allowed)
        return batches

    if callable(given):
        return lambda index: open_data(given(index))
    made = open_data(given)
    return lambda index: made


def _after_first(
    first: pl.LightningDataModule, others: Callable[[int], pl.LightningDataModule], index: int
) -> pl.LightningDataModule:
    """The data of a round; those of round 0 are already open."""
    return first if index == 0 else others(index)


def _require_logits(net: nn.Module, loss: Loss | None, data: pl.LightningDataModule, recovery: Recovery) -> ClassDims:
    """The dims of the classes in the network's output for the first batch. Random states and buffers are restored.

    Raises:
        InvalidSetting: the output does not name its logits, or has other numbers of them in training and eval mode.
    """
    task, loader, state = LightningPlainTask(net, loss), data.train_dataloader(), random_state()
    drawn = loader.generator.get_state()
    try:
        batch = task.transfer_batch_to_device(next(iter(loader)), device_of(net), 0)
        inputs = task.net_inputs(batch)
        with in_eval_mode(net), torch.no_grad():
            evaluated = len(task.name_logits(task.call(net, inputs)))
        buffers = [(buffer, buffer.clone()) for buffer in net.buffers()]
        with keep_modes(net), torch.no_grad():
            if not net.training:
                net.train()
            output = task.call(net, inputs)
            for buffer, before in buffers:
                buffer.copy_(before)
            if len(task.name_logits(output)) != evaluated:
                allowed = (
                    f"returns {len(task.name_logits(output))} logits as it trains and {evaluated} in eval mode, as a teacher "
                    "is: recovery=distill and cast compare them one by one"
                )
                raise InvalidSetting("net", type(net).__name__, allowed)
            dims = task.class_dims(output, batch)
    finally:
        loader.generator.set_state(drawn)
        set_random_state(state)
    scores = [name or "the output" for name, dim in dims.items() if dim is None]
    if scores:
        text = "recovery=%s compares %s with the teacher's by squared difference: the loss is no softmax over one of its dims"
        log.info(text, recovery.name, " and ".join(scores))
    return dims


def _most_batches(recovery: Recovery, setup: RecoverySetup) -> int | None:
    """The most batches of an epoch that anything reads; None = all, or unknown."""
    asked = setup.pruning.importance.count_batches(recovery)
    if recovery.training is not None:
        limit = setup.trainer.limit_batches
        return None if limit is None or asked is None else max(limit, asked)
    says = hasattr(recovery, "batches") or hasattr(recovery, "batch_norm_batches")
    return asked if says else None


def _require_heeded(name: str, value: float | None, recovery: Recovery) -> None:
    """Raise InvalidSetting if `epochs` or `lr` is given but the recovery would not use it."""
    if value is None:
        return
    if recovery.training is None:
        raise InvalidSetting(name, value, f"recovery={recovery.name} trains nothing: leave {name} out")
    if getattr(recovery.training, name, None) not in (None, "all", value):
        raise InvalidSetting(name, value, f"give it to {type(recovery).__name__}(...), not beside recovery=")


def _require_types(loss: object, recipe: object, trainer: object, context: object) -> None:
    """Raise InvalidSetting for the first argument with a wrong type."""
    if loss is not None:
        allowed = "is a function (output, target) -> scalar, or None where the network has its own"
        require_callable("loss", loss, "output", "target", allowed=allowed)
    require_instance("recipe", recipe, Recipe)
    require_instance("trainer", trainer, TrainerSettings)
    if context is not None and not isinstance(context, RunContext):
        raise InvalidSetting(
            "context", type(context).__name__, "is a RunContext of sparsefront.recovery.rounds, or None"
        )


def _start_dense(net: nn.Module, trained: Network) -> None:
    """Load the dense weights into the network in place; raises InvalidSetting if the architectures differ."""
    net.load_state_dict(_require_same(_fresh(trained, "dense_net"), net, "dense_net"))


def _require_same(given: nn.Module, net: nn.Module, argument: str) -> StateDict:
    """The weights of a given network; raises InvalidSetting if its architecture differs from `net`."""
    as_linears(given, dict(net.named_modules()))
    weights = given.state_dict()
    complaint = misfit_of(weights, net.state_dict())
    if complaint:
        raise InvalidSetting(argument, type(given).__name__, complaint)
    return weights


def _require_weights(epoch_weights: object) -> None:
    """Raise InvalidSetting unless this maps epochs to state dicts."""
    if epoch_weights is None:
        return
    if not isinstance(epoch_weights, Mapping):
        allowed = "is a dict: epoch of the dense training, from 0 -> its weights"
        raise InvalidSetting("epoch_weights", type(epoch_weights).__name__, allowed)
    for epoch, weights in epoch_weights.items():
        if not isinstance(weights, Mapping):
            raise InvalidSetting(f"epoch_weights[{epoch!r}]", type(weights).__name__, "is a state dict")


def _require_trainable(net: nn.Module, recovery: Recovery, setup: RecoverySetup) -> None:
    """Raise InvalidSetting if the recovery trains but every parameter is frozen, or one is in fp16."""
    if recovery.training is None:
        return
    trained = {name: parameter for name, parameter in net.named_parameters() if parameter.requires_grad}
    if not trained:
        raise InvalidSetting(
            "net", type(net).__name__, f"has no parameter with requires_grad, and recovery={recovery.name} trains"
        )
    half = next((name for name, parameter in trained.items() if parameter.dtype == torch.float16), None)
    if half is not None and (setup.recipe.optimizer == "adamw" or setup.trainer.real_precision == "16-mixed"):
        allowed = (
            f"has weights in {torch.float16} ({half}), in which small gradients and the epsilon of Adam are zero: train "
            "net.float() or net.bfloat16(), the first with trainer.precision=bf16-mixed where it should be fast; net.half() is "
            "for sf.swap, after the training"
        )
        raise InvalidSetting("net", type(net).__name__, allowed)


def _require_ranks(trainer: TrainerSettings, recovery: Recovery, *, library: bool) -> None:
    """Raise InvalidSetting if several devices are to train together but their processes do not exist.

    Args:
        library: called outside of a run. (A run uses one process for recoveries that train nothing.)
    """
    if trainer.world_size in (1, distributed.world_size()) or not (library or recovery.training is not None):
        return
    key, value = (
        ("trainer.num_nodes", trainer.num_nodes) if trainer.devices == 1 else ("trainer.devices", trainer.devices)
    )
    allowed = (
        f"sf.recover trains in this process alone, and starts no others: set it to 1, or let the program train: "
        f"{program_command('run')} {key}={value}"
        if distributed.world_size() == 1
        else f"{distributed.world_size()} processes are there to train together, and trainer.devices * trainer.num_nodes "
        f"says {trainer.world_size}"
    )
    raise InvalidSetting(key, value, allowed)


def _recipe(recipe: Recipe | None, epochs: int | None, lr: float | None) -> Recipe:
    """The recipe with this training's epochs and rate; for rewinding, the dense recipe's own."""
    chosen = recipe or Recipe()
    if epochs is not None and (isinstance(epochs, bool) or not isinstance(epochs, Integral) or epochs < 1):
        allowed = "must be a whole number of at least 1; recovery=none trains nothing"
        raise InvalidSetting("epochs", epochs if isinstance(epochs, Real) else repr(epochs), allowed)
    if epochs is not None:
        chosen = replace(chosen, epochs=int(epochs), recovery_epochs=None, recovery_steps=None)
    return chosen if lr is None else replace(chosen, lr=lr, recovery_lr=None)


def _fresh(network: Network, argument: str) -> nn.Module:
    """Copy a network, so that it can be trained or moved to another device."""
    made = copy.deepcopy(unwrap(network)) if isinstance(network, nn.Module) else unwrap(network())
    require_network(made, argument=f"{argument}()")
    return made


def _plain_task(
    loss: Loss | None, dims: ClassDims | None, net: nn.Module, optimization: Optimization | None
) -> LightningPlainTask:
    return LightningPlainTask(net, loss, optimization, class_dims=dims)
