"""Stage export: masked weights become plain and compressed checkpoints with a manifest."""

import logging
from pathlib import Path
from typing import Any

from sparsefront.artifacts.store import Artifact, ArtifactStore
from sparsefront.experiment import Experiment
from sparsefront.export.checkpoint import write_export
from sparsefront.pruning.mask_file import load_masks
from sparsefront.pruning.mask_layout import MaskLayout
from sparsefront.stages.network import MASKS, WEIGHTS, load_net

log = logging.getLogger(__name__)


def run(
    experiment: Experiment, store: ArtifactStore, cache_key: dict[str, Any], pruned: Artifact, recovered: Artifact
) -> Artifact:
    """See `export.checkpoint.write_export`."""

    def make(folder: Path) -> None:
        log.info("export: compressed checkpoint and manifest")
        layout = MaskLayout.load(pruned.path)
        write_export(
            folder,
            load_net(experiment, recovered.path / WEIGHTS),
            load_masks(recovered.path / MASKS),
            pattern=experiment.pattern,
            sparsity=experiment.sparsity,
            permutations=layout.permutations,
            sparsities=layout.sparsities,
            dense_reasons=pruned.read_json("plan.json")["dense_layers"],
            model=experiment.model,
            weights=recovered.path / WEIGHTS,
        )

    return store.get_or_create("export", cache_key, make)
