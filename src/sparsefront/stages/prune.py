"""Stage prune: scores of the dense weights become the first masks."""

import json
import logging
from pathlib import Path
from typing import Any

from sparsefront.artifacts.store import Artifact, ArtifactStore
from sparsefront.experiment import Experiment
from sparsefront.library.prune import prune
from sparsefront.pruning.mask_file import MASKS, save_masks
from sparsefront.stages.network import device_of, load_net, make_task, open_data
from sparsefront.stages.seeds import reseed, stage_seed
from sparsefront.training.epoch_weights import WEIGHTS

log = logging.getLogger(__name__)


def run(experiment: Experiment, store: ArtifactStore, cache_key: dict[str, Any], dense: Artifact) -> Artifact:
    """masks.safetensors, plan.json (layers that stay dense and why), and what `MaskLayout.save` writes."""

    def make(folder: Path) -> None:
        net = load_net(experiment, dense.path / WEIGHTS).to(device_of(experiment))
        data = open_data(experiment, seed=stage_seed(experiment.seed, "prune, order"))
        prunable = experiment.model.prunable(net)
        reseed(stage_seed(experiment.seed, "prune"))
        masks = prune(
            net,
            experiment.pattern,
            experiment.sparsity,
            importance=experiment.importance,
            allocation=experiment.allocation,
            schedule=experiment.schedule,
            calibration=data.train_dataloader,
            layers=prunable,
            ignore=experiment.recipe.ignored(prunable),
            task=make_task(experiment, net),
            tell=log.info,
        )
        save_masks(masks, folder / MASKS)
        masks.layout.save(folder)
        (folder / "plan.json").write_text(json.dumps({"dense_layers": masks.ignored}))

    return store.get_or_create("prune", cache_key, make)
