"""Stage export: masked weights become plain and compressed checkpoints with a manifest."""

import logging
from pathlib import Path
from typing import Any

from sparsefront.artifacts.store import Artifact, ArtifactStore
from sparsefront.config.experiment import Experiment
from sparsefront.export.save import save
from sparsefront.stages.network import load_net
from sparsefront.stages.recover import load_masks_of
from sparsefront.training.resume import WEIGHTS

log = logging.getLogger(__name__)


def run(
    experiment: Experiment, store: ArtifactStore, cache_key: dict[str, Any], pruned: Artifact, recovered: Artifact
) -> Artifact:
    """See `export.save.save`."""

    def make(folder: Path) -> None:
        log.info("export: compressed checkpoint and manifest")
        weights = recovered.path / WEIGHTS
        masks = load_masks_of(experiment, pruned.path, recovered.path)
        save(folder, load_net(experiment, weights), masks, model=experiment.model, weights=weights)

    return store.get_or_create("export", cache_key, make)
