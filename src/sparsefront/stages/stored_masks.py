"""The masks that a stage stored, with how they were made."""

import json
from pathlib import Path

from sparsefront.experiment import Experiment
from sparsefront.library.masks import Masks
from sparsefront.patterns.records import modules_of
from sparsefront.pruning.mask_file import MASKS, load_masks
from sparsefront.pruning.mask_layout import MaskLayout


def load_masks_of(experiment: Experiment, pruned: Path, folder: Path) -> Masks:
    """Masks as the library takes them.

    Args:
        pruned: folder of stage prune, which fixed the structure.
        folder: of the stage whose masks are read.
    """
    return Masks(
        load_masks(folder / MASKS),
        pruning=experiment.pruning,
        layout=MaskLayout.load(pruned, trust=modules_of(experiment.pattern)),
        ignored=json.loads((pruned / "plan.json").read_text())["dense_layers"],
    )
