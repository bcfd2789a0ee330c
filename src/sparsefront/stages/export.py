"""Stage export: write the masked weights as plain and compressed checkpoints with a manifest."""

import logging
from typing import Any

from sparsefront.artifacts.store import Artifact, ArtifactStore
from sparsefront.config.experiment import Experiment
from sparsefront.export.save import save
from sparsefront.pruning.narrow import save_narrower
from sparsefront.stages.network import load_net
from sparsefront.stages.recover import load_masks_of
from sparsefront.training.resume import WEIGHTS

log = logging.getLogger(__name__)


def run(
    experiment: Experiment, store: ArtifactStore, cache_key: dict[str, Any], pruned: Artifact, recovered: Artifact
) -> Artifact:
    """See `export.save.save`; for tied layers also narrower/, if transformers can describe the narrower network."""
    while (exported := store.get("export", cache_key)) is None:
        with store.making("export", cache_key) as new:
            log.info("export: compressed checkpoint and manifest")
            weights = recovered.path / WEIGHTS
            masks = load_masks_of(experiment, pruned.path, recovered.path)
            net = load_net(experiment, weights, shrink=masks.spec.shrink)
            save(new.folder, net, masks, model=experiment.model, weights=weights)
            if experiment.pattern.tied and not experiment.leaves_dense:
                save_narrower(new.folder / "narrower", net, masks)
    return exported
