"""Stage prune: scores of the dense weights become the first masks."""

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor

from sparsefront.artifacts.store import Artifact, ArtifactStore
from sparsefront.experiment import Experiment
from sparsefront.pruning.calibration import score_weights
from sparsefront.pruning.layers import PruningPlan, plan_pruning
from sparsefront.pruning.make_masks import make_masks
from sparsefront.stages.network import MASKS, WEIGHTS, device_of, load_net, make_task, open_data, reseed, save_masks
from sparsefront.tasks.base import Task

log = logging.getLogger(__name__)


def plan_of(experiment: Experiment, net: Any) -> PruningPlan:
    return plan_pruning(
        net,
        experiment.model.prunable(net),
        pattern=experiment.pattern,
        sparsity=experiment.sparsity,
        recipe=experiment.recipe,
    )


def mask_maker(
    experiment: Experiment, task: Task, layers: list[str], train_loader: object
) -> Callable[[float, dict[str, Tensor] | None], dict[str, Tensor]]:
    """A function from a sparsity, and the masks so far, to masks of the task's network as it is when called."""

    def masks_at(sparsity: float, previous: dict[str, Tensor] | None) -> dict[str, Tensor]:
        scores = score_weights(task, layers, importance=experiment.importance, train_loader=train_loader)
        return make_masks(
            scores,
            experiment.pattern,
            experiment.allocation,
            sparsity,
            final_sparsity=experiment.sparsity,
            previous=previous,
        )

    return masks_at


def run(experiment: Experiment, store: ArtifactStore, determines: dict[str, Any], dense: Artifact) -> Artifact:
    """masks.safetensors, plan.json (layers that stay dense and why)."""

    def make(folder: Path) -> None:
        net = load_net(experiment, dense.path / WEIGHTS).to(device_of(experiment))
        plan = plan_of(experiment, net)
        first = experiment.schedule.sparsity_at(0.0, experiment.sparsity)
        log.info("prune: %s at %.4g in %d layers", experiment.choices["pattern"], first, len(plan.layers))
        data = open_data(experiment)
        reseed(experiment, "prune")
        masks = mask_maker(experiment, make_task(experiment, net), plan.layers, data.train_dataloader())(first, None)
        save_masks(masks, folder / MASKS)
        (folder / "plan.json").write_text(json.dumps({"dense_layers": plan.dense_reasons}))

    return store.obtain("prune", determines, make)
