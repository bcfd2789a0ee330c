"""Stage dense: train or fine-tune the unpruned network once for all runs that share it."""

import json
import logging
from pathlib import Path
from typing import Any

from sparsefront.artifacts.store import Artifact, ArtifactStore
from sparsefront.experiment import Experiment
from sparsefront.stages.network import WEIGHTS, build_net, make_task, open_data, reseed, save_weights
from sparsefront.training.fit import fit, steps_per_epoch
from sparsefront.training.optimization import Optimization

log = logging.getLogger(__name__)


def run(experiment: Experiment, store: ArtifactStore, determines: dict[str, Any], loggers: list) -> Artifact:
    """weights.safetensors, training.json."""

    def make(folder: Path) -> None:
        recipe = experiment.recipe
        # The network first: a checkpoint that does not fit is told before data is fetched and tokenised.
        net = build_net(experiment)
        data = open_data(experiment)
        steps = steps_per_epoch(data, experiment.trainer)
        optimization = Optimization(recipe, lr=recipe.lr, total_steps=recipe.epochs * steps)
        reseed(experiment, "dense")
        log.info(
            "dense: training %s on %s for %d epochs",
            experiment.choices["model"],
            experiment.choices["dataset"],
            recipe.epochs,
        )
        seconds = fit(
            make_task(experiment, net, optimization),
            data,
            epochs=recipe.epochs,
            recipe=recipe,
            trainer=experiment.trainer,
            loggers=loggers,
            directory=folder,
        )
        save_weights(net, folder / WEIGHTS)
        (folder / "training.json").write_text(json.dumps({"seconds": seconds, "steps": recipe.epochs * steps}))

    return store.obtain("dense", determines, make)
