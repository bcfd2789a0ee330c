"""Hooks on modules, which are called with a module's own forward alone: what stands in for it would drop them."""

from torch import nn


def has_forward_hooks(module: nn.Module) -> bool:
    """Whether something sees or changes what this module is given or gives, its parts aside."""
    return bool(module._forward_hooks or module._forward_pre_hooks)
