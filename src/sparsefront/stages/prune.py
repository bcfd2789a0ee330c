"""Stage prune: scores of the dense weights become the first masks, and a search gives layers their patterns."""

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import nn

from sparsefront.artifacts.store import Artifact, ArtifactStore
from sparsefront.experiment import Experiment
from sparsefront.gpu_sharing.access import sharing
from sparsefront.library.prune import prune
from sparsefront.pruning.layout_search import LayoutSearch
from sparsefront.pruning.mask_file import MASKS, save_masks
from sparsefront.stages.network import device_of, load_net, make_task, open_data
from sparsefront.stages.seeds import reseed, stage_seed
from sparsefront.time_use import PRUNING, spent_on
from sparsefront.training.determinism import deterministic_algorithms
from sparsefront.training.epoch_weights import WEIGHTS

SEARCH = "search.json"
log = logging.getLogger(__name__)


def run(
    experiment: Experiment,
    store: ArtifactStore,
    cache_key: dict[str, Any],
    dense: Artifact,
    search: Callable[[nn.Module], LayoutSearch] | None = None,
) -> Artifact:
    """masks.safetensors, plan.json (layers that stay dense and why), what `MaskLayout.save` writes, and of a search for a
    latency search.json: what it found.

    Args:
        search: makes such a search for a network of the dense weights; None where there is none.
    """

    @spent_on(PRUNING)
    def make(folder: Path) -> None:
        net, device = load_net(experiment, dense.path / WEIGHTS), device_of(experiment)
        data = open_data(experiment, seed=stage_seed(experiment.seed, "prune, order"))
        prunable = experiment.model.prunable(net)
        reseed(stage_seed(experiment.seed, "prune"))
        with sharing(device), deterministic_algorithms(experiment.trainer.deterministic):
            masks = prune(
                net.to(device),
                experiment.pattern,
                experiment.sparsity,
                importance=experiment.importance,
                allocation=experiment.allocation,
                schedule=experiment.schedule,
                calibration=data.train_dataloader,
                layers=prunable,
                ignore=experiment.recipe.ignored(prunable),
                task=make_task(experiment, net),
                search=None if search is None else search(net),
                tell=log.info,
            )
        save_masks(masks, folder / MASKS)
        masks.layout.save(folder)
        (folder / "plan.json").write_text(json.dumps({"dense_layers": masks.ignored}))
        if masks.search is not None:
            (folder / SEARCH).write_text(json.dumps(masks.search.to_json(), indent=2))

    return store.get_or_create("prune", cache_key, make)


def found_by_search(pruned: Artifact | None) -> dict[str, Any] | None:
    """What a search for a latency wrote into the folder of this stage; None where there was none."""
    if pruned is None or not (pruned.path / SEARCH).is_file():
        return None
    found: dict[str, Any] = pruned.read_json(SEARCH)
    return found
