"""The layers that a model says may be pruned, checked: its class may be a user's own."""

from torch import nn

from sparsefront.errors import InvalidSetting
from sparsefront.models.base import Model

NAMED_AT_MOST = 8


def prunable_layers(model: Model, net: nn.Module) -> list[str]:
    """What `model.prunable(net)` names.

    Raises:
        InvalidSetting: key `_target_`: no list, a name of no Linear and no Conv2d, or one that is there twice.
    """
    named = model.prunable(net)
    kind = f"{type(model).__module__}.{type(model).__qualname__}"
    if not isinstance(named, list | tuple):
        allowed = f"prunable returns {named!r}, where it returns a list of names of Linear and Conv2d layers"
        raise InvalidSetting("_target_", kind, allowed)
    modules = dict(net.named_modules(remove_duplicate=False))
    layers = [name for name, module in modules.items() if isinstance(module, nn.Linear | nn.Conv2d)]
    for place, name in enumerate(named):
        if name not in layers:
            there = ", ".join(layers[:NAMED_AT_MOST]) + (", ..." if len(layers) > NAMED_AT_MOST else "")
            allowed = f"prunable names {name!r}, which is no Linear and no Conv2d layer; there are {there or 'none'}"
            raise InvalidSetting("_target_", kind, allowed)
        if name in named[:place]:
            raise InvalidSetting("_target_", kind, f"prunable names {name!r} twice")
    return list(named)
