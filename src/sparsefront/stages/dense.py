"""Stage dense: train or fine-tune the unpruned network once for all runs that share it, or load a checkpoint."""

import json
import logging
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sparsefront.artifacts.store import Artifact, ArtifactStore
from sparsefront.config.experiment import Experiment
from sparsefront.config.sweeps import note_work
from sparsefront.errors import InvalidSetting
from sparsefront.gpu import EnergyMeter
from sparsefront.models.checkpoint import new_layers
from sparsefront.progress import counted
from sparsefront.stages.keys import reseed, stage_seed
from sparsefront.stages.network import build_net, device_of, make_task, open_data, require_rows_and_classes
from sparsefront.training.fit import Trained, fit, steps_per_epoch
from sparsefront.training.ranks import other_ranks_running
from sparsefront.training.recipe import Optimization
from sparsefront.training.resume import WEIGHTS, SaveEpochWeights, save_weights

log = logging.getLogger(__name__)


def run(experiment: Experiment, store: ArtifactStore, cache_key: dict[str, Any], loggers: list) -> Artifact:
    """Write weights.safetensors, training.json and, with recipe.save_epoch_weights, epoch_weights/ with one file per epoch."""
    resume_dir = store.locate_unfinished("dense", cache_key)
    while (dense := store.get("dense", cache_key)) is None:
        with (
            store.making("dense", cache_key) as new,
            other_ranks_running(train, experiment, resume_dir, trainer=experiment.trainer, shared=experiment.cache_dir),
        ):
            new.earlier_seconds = train(experiment, resume_dir, new.folder, loggers)
    if not dense.reused:
        note_work(shared_seconds=dense.seconds)
    return dense


def train(experiment: Experiment, resume_dir: Path, folder: Path, loggers: list) -> float:
    """The body that every process of the training runs.

    Args:
        resume_dir: for state that survives a killed run, which resumes from it.
        folder: where the stage's files go.
    Returns:
        the seconds that a killed run spent before the point from which this one resumed.
    """
    recipe = experiment.recipe
    # Build the network first, to report an unsuitable checkpoint before data is downloaded and tokenized.
    net = build_net(experiment)
    if recipe.epochs == 0 and (new := new_layers(net)):
        allowed = (
            f"takes the checkpoint as it is, and {', '.join(new)} is not in it: name one that was trained on this task"
        )
        raise InvalidSetting("recipe.epochs", 0, allowed)
    data = open_data(experiment, seed=stage_seed(experiment.seed, "dense, order"))
    # Set up all splits that later stages need, to report an unreadable test split before the training.
    data.setup(None if experiment.continues_to("measure") else "fit")
    for split in ("train", "val", "test") if experiment.continues_to("measure") else ("train",):
        require_rows_and_classes(experiment, data, split)
    trained, joules = Trained(), {}
    if recipe.epochs > 0:
        total_steps = recipe.epochs * steps_per_epoch(data, experiment.trainer)
        reseed(stage_seed(experiment.seed, "dense"))
        log.info(
            "dense: training %s on %s for %s",
            experiment.choices["model"],
            experiment.choices["dataset"],
            counted(recipe.epochs, "epoch"),
        )
        with EnergyMeter(device_of(experiment)) as energy:
            trained = fit(
                make_task(experiment, net, Optimization(recipe, lr=recipe.lr, total_steps=total_steps)),
                data,
                epochs=recipe.epochs,
                recipe=recipe,
                trainer=experiment.trainer,
                loggers=loggers,
                directory=folder,
                callbacks=(SaveEpochWeights(folder, resume_dir, save_weights),) if recipe.save_epoch_weights else (),
                resume_dir=resume_dir,
                stage="dense",
                phase="dense",
            )
        joules = energy.fields(resumed=trained.earlier_seconds > 0)
    save_weights(net, folder / WEIGHTS)
    (folder / "training.json").write_text(json.dumps(asdict(trained) | joules), encoding="utf-8")
    return trained.earlier_seconds
