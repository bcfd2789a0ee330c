"""Stage recover: train the pruned network under its masks."""

import json
import logging
import shutil
from pathlib import Path
from typing import Any

from sparsefront.artifacts.store import Artifact, ArtifactStore
from sparsefront.experiment import Experiment
from sparsefront.pruning.callback import HoldMasks
from sparsefront.pruning.masked_weights import MaskedWeights
from sparsefront.pruning.structure import Structure
from sparsefront.stages.network import (
    MASKS,
    WEIGHTS,
    load_masks,
    load_net,
    make_task,
    open_data,
    reseed,
    save_masks,
    save_weights,
)
from sparsefront.stages.prune import mask_maker
from sparsefront.training.fit import fit, steps_per_epoch

log = logging.getLogger(__name__)


def run(
    experiment: Experiment,
    store: ArtifactStore,
    determines: dict[str, Any],
    dense: Artifact,
    pruned: Artifact,
    loggers: list,
) -> Artifact:
    """weights.safetensors (zeros where pruned), masks.safetensors, training.json."""

    def make(folder: Path) -> None:
        net = load_net(experiment, dense.path / WEIGHTS)
        first_masks = load_masks(pruned.path / MASKS)
        masked = MaskedWeights(net, first_masks)
        masked.set(first_masks)
        data = open_data(experiment)
        steps = steps_per_epoch(data, experiment.trainer)
        plan = experiment.recovery.plan(experiment.recipe, steps)
        seconds, reached = 0.0, []
        if plan is None:
            shutil.copy(pruned.path / MASKS, folder / MASKS)
        else:
            task = make_task(experiment, net, plan.optimization)
            hold = HoldMasks(
                masked,
                schedule=experiment.schedule,
                sparsity=experiment.sparsity,
                make_masks=mask_maker(
                    experiment, task, list(first_masks), data.train_dataloader(), Structure.load(pruned.path)
                ),
                total_steps=plan.epochs * steps,
            )
            reseed(experiment, "recover")
            log.info("recover: %s for %d epochs", experiment.choices["recovery"], plan.epochs)
            seconds = fit(
                task,
                data,
                epochs=plan.epochs,
                recipe=experiment.recipe,
                trainer=experiment.trainer,
                loggers=loggers,
                directory=folder,
                callbacks=(hold,),
            )
            reached = hold.reached
            save_masks(masked.masks(), folder / MASKS)
        masked.check()
        save_weights(net, folder / WEIGHTS)
        (folder / "training.json").write_text(json.dumps({"seconds": seconds, "sparsity_reached": reached}))

    return store.obtain("recover", determines, make)
