"""Expressions that keep layers dense must mean some layer."""

import re

from torch import nn

from sparsefront.errors import InvalidSetting
from sparsefront.training.recipe import Recipe


def require_matches(recipe: Recipe, net: nn.Module, prunable: list[str]) -> None:
    """Each expression of `recipe.ignore` must find a layer of the network.

    One that finds only layers which are never pruned (an embedding, the head) states a fact and may stay.

    Args:
        net: also on the meta device: only names are read.
        prunable: names of the layers that may be pruned, for the message.
    Raises:
        InvalidSetting: an expression that finds nothing; names the layers that there are.
    """
    layers = [name for name, module in net.named_modules() if getattr(module, "weight", None) is not None]
    for expression in recipe.ignore:
        if not any(re.search(expression, name) for name in layers):
            allowed = f"finds no layer; there are {', '.join(numbered_alike(prunable))} (N: the number of a block)"
            raise InvalidSetting("ignore", expression, allowed)


def numbered_alike(names: list[str]) -> list[str]:
    """The names with block numbers as N, each once, in their order: `blocks.N.attn.q`."""
    return list(dict.fromkeys(re.sub(r"(?<=\.)\d+(?=\.|$)", "N", name) for name in names))
