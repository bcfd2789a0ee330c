"""What a training writes while it runs, against the room that its disk has."""

from pathlib import Path

from torch import nn

from sparsefront.artifacts.disk_space import require_space
from sparsefront.training.recipe import Recipe


def require_room(
    net: nn.Module, folder: Path, *, epochs: int, recipe: Recipe, keeps_epochs: bool, epoch_weights: bool
) -> None:
    """Require, before the first step, that the disk has room for this training.

    Args:
        folder: of the stage, in the cache.
        keeps_epochs: whether the state of each epoch but the last is kept for a killed training to go on from.
        epoch_weights: whether the weights at the start of each epoch are kept for good.
    Raises:
        InvalidSetting: too little room; names what is free and what is needed.
    """
    weights = sum(tensor.numel() * tensor.element_size() for tensor in net.state_dict().values())
    needed = weights * (1 + (epochs if epoch_weights else 0))
    remedy = ""
    if keeps_epochs and epochs > 1:
        # the new state is written beside the old one, which it then replaces
        needed += 2 * weights * (1 + _copies_in_optimizer(recipe) + (recipe.ema is not None))
        remedy = "or set trainer.checkpoint=false, which keeps the state of no epoch"
    require_space(folder.parent, needed, key="cache_dir", what="this training", remedy=remedy)


def _copies_in_optimizer(recipe: Recipe) -> int:
    """Numbers that the optimizer keeps for each weight."""
    return 2 if recipe.optimizer == "adamw" else int(recipe.momentum > 0)
