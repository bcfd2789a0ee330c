"""What must go together in how long networks are trained, before anything is."""

import logging
from dataclasses import replace

from sparsefront.errors import InvalidSetting
from sparsefront.experiment import Experiment

log = logging.getLogger(__name__)


def check_checkpoint(experiment: Experiment) -> None:
    """Without epochs there must be a finished checkpoint to take as the dense network.

    Raises:
        InvalidSetting: the model starts from random weights.
    """
    if experiment.recipe.epochs == 0 and experiment.model.checkpoint is None:
        allowed = (
            f"takes a finished checkpoint as the dense network, and model {experiment.choices['model']} starts from random "
            "weights: name a checkpoint (model.path, or another model), or train at least 1 epoch"
        )
        raise InvalidSetting("recipe.epochs", 0, allowed)


def with_possible_control(experiment: Experiment) -> Experiment:
    """Without a control where no training follows pruning: a sweep over recoveries, or with pattern=dense, goes on."""
    if experiment.control is None or experiment.continued_recovery is not None:
        return experiment
    why = f"recovery={experiment.recovery.name}" if experiment.pattern.prunes else f"pattern={experiment.pattern.name}"
    log.info("control=%s: skipped, %s trains nothing that the dense network could match", experiment.control, why)
    return replace(experiment, control=None)
