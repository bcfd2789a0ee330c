"""Stage prune: scores of the dense weights become the first masks."""

import json
import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from sparsefront.artifacts.store import Artifact, ArtifactStore
from sparsefront.experiment import Experiment
from sparsefront.importance.finite import require_finite
from sparsefront.measure.sparsity import achieved_sparsity
from sparsefront.pruning.calibration import score_weights
from sparsefront.pruning.collapse import collapse_warning
from sparsefront.pruning.layers import PruningPlan, plan_pruning
from sparsefront.pruning.make_masks import make_masks
from sparsefront.pruning.mask_file import save_masks
from sparsefront.pruning.mask_layout import MaskLayout, fix_layout
from sparsefront.pruning.movement import AccumulateMovement
from sparsefront.stages.network import MASKS, WEIGHTS, device_of, load_net, make_task, open_data, reseed
from sparsefront.tasks.base import Batch, Task

log = logging.getLogger(__name__)


def plan_of(experiment: Experiment, net: Any) -> PruningPlan:
    return plan_pruning(
        net,
        experiment.model.prunable(net),
        pattern=experiment.pattern,
        sparsity=experiment.sparsity,
        recipe=experiment.recipe,
    )


def weight_shapes_of(net: nn.Module, layers: list[str]) -> dict[str, tuple[int, ...]]:
    """Layer -> the shape of its weight: Linear (N, K), Conv2d (C_out, C_in, kh, kw)."""
    return {name: tuple(net.get_submodule(name).weight.shape) for name in layers}


def mask_maker(
    experiment: Experiment,
    task: Task,
    layers: list[str],
    open_loader: Callable[[], Iterable[Batch]],
    layout: MaskLayout,
    movement: AccumulateMovement | None = None,
) -> Callable[[float, dict[str, Tensor] | None], dict[str, Tensor]]:
    """A function from a sparsity, and the masks so far, to masks of the task's network as it is when called.

    Args:
        open_loader, movement: see `score_weights`.
    """

    def masks_at(sparsity: float, previous: dict[str, Tensor] | None) -> dict[str, Tensor]:
        scores = score_weights(
            task, layers, importance=experiment.importance, open_loader=open_loader, movement=movement
        )
        return make_masks(
            scores,
            experiment.pattern,
            experiment.allocation,
            sparsity,
            final_sparsity=experiment.sparsity,
            previous=previous,
            layout=layout,
        )

    return masks_at


def run(experiment: Experiment, store: ArtifactStore, cache_key: dict[str, Any], dense: Artifact) -> Artifact:
    """masks.safetensors, plan.json (layers that stay dense and why), and what `MaskLayout.save` writes."""

    def make(folder: Path) -> None:
        net = load_net(experiment, dense.path / WEIGHTS).to(device_of(experiment))
        plan = plan_of(experiment, net)
        first = experiment.schedule.sparsity_at(0.0, experiment.sparsity)
        log.info("prune: %s at %.4g in %d layers", experiment.choices["pattern"], first, len(plan.layers))
        data = open_data(experiment)
        reseed(experiment, "prune")
        scores = score_weights(
            make_task(experiment, net),
            plan.layers,
            importance=experiment.importance,
            open_loader=data.train_dataloader,
            movement=AccumulateMovement(net, plan.layers),  # nothing has moved yet: all scores are zero
        )
        parts = experiment.pattern, experiment.allocation
        shapes = weight_shapes_of(net, plan.layers)
        require_finite(scores)
        layout = fix_layout(scores, *parts, experiment.sparsity, weight_shapes=shapes)
        masks = make_masks(scores, *parts, first, final_sparsity=experiment.sparsity, layout=layout)
        sparsities = achieved_sparsity(net, masks, plan.shapes).layers
        if warning := collapse_warning(sparsities, first, experiment.allocation.name):
            log.warning("prune: %s", warning)  # now: what follows may train for hours
        save_masks(masks, folder / MASKS)
        layout.save(folder)
        (folder / "plan.json").write_text(json.dumps({"dense_layers": plan.dense_reasons}))

    return store.get_or_create("prune", cache_key, make)
