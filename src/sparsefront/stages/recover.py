"""Stage recover: round by round, the network is pruned and its accuracy brought back."""

import json
import logging
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from sparsefront.artifacts.store import Artifact, ArtifactStore
from sparsefront.errors import InvalidSetting
from sparsefront.experiment import Experiment
from sparsefront.finite import first_non_finite
from sparsefront.pruning.mask_file import load_masks, save_masks
from sparsefront.pruning.mask_layout import MaskLayout
from sparsefront.pruning.masked_weights import MaskedWeights
from sparsefront.pruning.movement import AccumulateMovement
from sparsefront.recovery.base import Round, RoundRecord
from sparsefront.stages.finished_rounds import FinishedRounds
from sparsefront.stages.network import (
    MASKS,
    WEIGHTS,
    build_net,
    device_of,
    load_net,
    make_task,
    open_data,
    reseed,
    save_weights,
)
from sparsefront.stages.prune import mask_maker
from sparsefront.training.rank_processes import on_every_rank

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RecoverInputs:
    """Folders of the stages that this one goes on from."""

    dense: Path
    pruned: Path


def run(
    experiment: Experiment,
    store: ArtifactStore,
    cache_key: dict[str, Any],
    dense: Artifact,
    pruned: Artifact,
    loggers: list,
) -> Artifact:
    """weights.safetensors (zeros where pruned), masks.safetensors, training.json (a record of every round)."""

    def make(folder: Path) -> float:
        return on_every_rank(
            train_body,
            experiment,
            RecoverInputs(dense.path, pruned.path),
            store.unfinished("recover", cache_key),
            trainer=experiment.trainer,
            folder=folder,
            loggers=loggers,
        )

    return store.get_or_create("recover", cache_key, make)


def train_body(experiment: Experiment, paths: RecoverInputs, unfinished: Path, folder: Path, loggers: list) -> float:
    """What every process of the training runs.

    Args:
        unfinished: what is written here outlives a killed run, which goes on from it.
        folder: where the stage's files go.
    Returns:
        the seconds that killed runs spent on what this one went on from.
    """
    net = load_net(experiment, paths.dense / WEIGHTS)
    masks = load_masks(paths.pruned / MASKS)
    masked = MaskedWeights(net, masks)
    layout = MaskLayout.load(paths.pruned)
    data = open_data(experiment)
    movement = AccumulateMovement(net, list(masks)) if experiment.importance.source == "training" else None
    make_masks = mask_maker(
        experiment, make_task(experiment, net), list(masks), data.train_dataloader, layout, movement
    )
    levels = experiment.schedule.round_sparsities(experiment.sparsity)
    tightens = bool(experiment.schedule.updates_of(1, experiment.sparsity))
    finished = FinishedRounds(
        unfinished, enabled=experiment.trainer.checkpoint, net=net, masked=masked, movement=movement
    )
    records = finished.restore()
    earlier_seconds = sum(record["seconds"] for record in records)
    for index in range(len(records), len(levels)):
        sparsity = levels[index]
        reseed(experiment, f"recover {index}")
        if index > 0:
            net.to(device_of(experiment))
            masks = make_masks(sparsity, masked.masks())
        log.info(
            "recover: %s at %.4g, round %d of %d%s",
            experiment.choices["recovery"],
            sparsity,
            index + 1,
            len(levels),
            f"; masks tighten to {experiment.sparsity:.4g} on the way" if tightens else "",
        )
        done = experiment.recovery.recover(
            Round(
                experiment=experiment,
                sparsity=sparsity,
                net=net,
                masks=masks,
                masked=masked,
                layout=layout,
                data=data,
                make_masks=make_masks,
                make_task=partial(make_task, experiment, net),
                initial_net=partial(build_net, experiment),
                dense=paths.dense,
                folder=folder,
                unfinished=finished.training_of(index),
                loggers=loggers,
                callbacks=() if movement is None else (movement,),
            )
        )
        masked.check()
        if (found := first_non_finite(dict(net.named_parameters()))) is not None:
            left = f"left {found.name} with {found.counts} values; nothing of this stage is stored"
            raise InvalidSetting("recovery", experiment.choices["recovery"], left)
        records.append(_record(sparsity, masked, done))
        earlier_seconds += done.earlier_seconds
        if index + 1 < len(levels):
            finished.keep(records)
    save_masks(masked.masks(), folder / MASKS)
    save_weights(net, folder / WEIGHTS)
    seconds = sum(record["seconds"] for record in records)
    (folder / "training.json").write_text(json.dumps({"seconds": seconds, "rounds": records}))
    return earlier_seconds


def _record(sparsity: float, masked: MaskedWeights, done: RoundRecord) -> dict[str, Any]:
    """A round in training.json: what was asked for, what was reached at its end, and what it took."""
    masks = masked.masks().values()
    kept = sum(int(mask.sum()) for mask in masks)
    achieved = 1 - kept / sum(mask.numel() for mask in masks)
    return {"sparsity": sparsity, "sparsity_achieved": achieved} | asdict(done)
