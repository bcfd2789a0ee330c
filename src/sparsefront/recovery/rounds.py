"""Round by round, a network is pruned and its accuracy brought back."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytorch_lightning as pl
import torch
from torch import nn

from sparsefront.errors import InvalidSetting
from sparsefront.finite import first_non_finite
from sparsefront.pruning.mask_layout import MaskLayout
from sparsefront.pruning.mask_maker import MaskMaker
from sparsefront.pruning.masked_weights import MaskedWeights
from sparsefront.pruning.movement import AccumulateMovement
from sparsefront.recovery.base import LayerMasks, Recovery, RecoverySetup, Round, RoundRecord, StateDict
from sparsefront.recovery.finished_rounds import FinishedRounds
from sparsefront.recovery.identity import identity_of
from sparsefront.tasks.base import Task
from sparsefront.training.optimization import Optimization

log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Source:
    """What a recovery learns from.

    Args:
        data_of_round: number of a round, from 0 -> its training data; a round's loader starts from the same order each time.
        make_task, dense_net, initial_net, epoch_weights: see `Round`.
    """

    data_of_round: Callable[[int], pl.LightningDataModule]
    make_task: Callable[[Optimization | None], Task]
    dense_net: Callable[[], nn.Module]
    initial_net: Callable[[], nn.Module]
    epoch_weights: Mapping[int, StateDict]

    @property
    def networks(self) -> dict[str, Callable[[], nn.Module]]:
        """By their names in `Recovery.needs`."""
        return {"dense_net": self.dense_net, "initial_net": self.initial_net}


@dataclass(frozen=True)
class Place:
    """Where a recovery trains.

    Args:
        folder: exists; the training may write below it.
        unfinished: outlives a killed run: the same recovery goes on from it, another one ends with an error. Empty at the end;
            None = nothing is kept.
        loggers: Lightning's, of every fit.
        begin_round: called with the number of each round, from 0, before it draws anything: to seed.
        keep_finished: `unfinished` stays at the end too, for a caller that removes it once the network is stored.
    """

    folder: Path
    unfinished: Path | None = None
    loggers: list = field(default_factory=list)
    begin_round: Callable[[int], object] = lambda index: None
    keep_finished: bool = False


@dataclass(frozen=True)
class Recovered:
    """How the rounds ended.

    Args:
        masks: layer name -> bool, shaped like the weight.
        records: one per round.
    """

    masks: LayerMasks
    records: tuple[RoundRecord, ...]


def run_rounds(
    net: nn.Module,
    masks: LayerMasks,
    layout: MaskLayout,
    recovery: Recovery,
    setup: RecoverySetup,
    source: Source,
    place: Place,
) -> Recovered:
    """Run the schedule's rounds on a network, in place.

    Args:
        net: the dense weights, or what is left of them under `masks`.
        masks: of the first round, layer name -> bool, [N, K] or shaped like the weight.
        layout: fixed before the first masks.
    Raises:
        InvalidSetting: a recovery that leaves layers without masks, returns no record or leaves weights that are not finite,
            or the state of another one in `place.unfinished`.
    """
    pruning, layers = setup.pruning, list(masks)
    with MaskedWeights(net, layers) as masked:
        movement = AccumulateMovement(net, layers) if pruning.importance.source == "training" else None
        task = source.make_task(None)
        levels = pruning.schedule.round_sparsities(pruning.sparsity)
        tightens = bool(pruning.schedule.updates_of(1, pruning.sparsity))
        finished = FinishedRounds(
            place.unfinished if setup.trainer.checkpoint else None, net=net, masked=masked, movement=movement
        )
        if finished.folder is not None:
            nets = {name: make() for name, make in source.networks.items() if name in recovery.needs}
            finished.begin(identity_of({"net": net, **nets}, masks, layout, recovery, setup))
        records = finished.restore()
        for index in range(len(records), len(levels)):
            place.begin_round(index)
            data = source.data_of_round(index)
            make_masks = MaskMaker(pruning, task, layers, layout, data.train_dataloader, movement)
            if index > 0:
                net.to(torch.device(setup.trainer.device))
                masks = make_masks(levels[index], masked.masks())
            log.info(
                "recover: %s at %.4g, round %d of %d%s",
                recovery.name,
                levels[index],
                index + 1,
                len(levels),
                f"; masks tighten to {pruning.sparsity:.4g} on the way" if tightens else "",
            )
            done = recovery.recover(
                Round(
                    setup=setup,
                    index=index,
                    sparsity=levels[index],
                    net=net,
                    masks=masks,
                    masked=masked,
                    layout=layout,
                    data=data,
                    make_masks=make_masks,
                    make_task=source.make_task,
                    initial_net=source.initial_net,
                    dense_net=source.dense_net,
                    epoch_weights=source.epoch_weights,
                    folder=place.folder,
                    unfinished=finished.training_of(index),
                    loggers=place.loggers,
                    callbacks=() if movement is None else (movement,),
                )
            )
            masked.check()
            if (found := first_non_finite(dict(net.named_parameters()))) is not None:
                raise InvalidSetting("recovery", recovery.name, f"left {found.name} with {found.counts} values")
            _require_contract(recovery, done, masked.masks(), layers)
            records.append(_with_sparsity(done, levels[index], masked))
            if index + 1 < len(levels):
                finished.keep(records)
        left = masked.masks()
    if not place.keep_finished:
        finished.forget()
    return Recovered(left, tuple(records))


def _require_contract(recovery: Recovery, done: object, masks: LayerMasks, layers: Sequence[str]) -> None:
    """What `Recovery.recover` promises, which a user's own may forget."""
    if without := [layer for layer in layers if layer not in masks]:
        allowed = f"left {without[0]} without a mask: `recover` passes the round's masks to round.masked.set"
        raise InvalidSetting("recovery", recovery.name, allowed)
    if not isinstance(done, RoundRecord):
        allowed = f"returned {type(done).__name__} from `recover`, which returns a RoundRecord"
        raise InvalidSetting("recovery", recovery.name, allowed)


def _with_sparsity(done: RoundRecord, sparsity: float, masked: MaskedWeights) -> RoundRecord:
    """The record of a round with what was asked for and what was reached at its end."""
    masks = masked.masks().values()
    kept = sum(int(mask.sum()) for mask in masks)
    achieved = 1 - kept / sum(mask.numel() for mask in masks)
    return replace(done, sparsity=sparsity, sparsity_achieved=achieved)
