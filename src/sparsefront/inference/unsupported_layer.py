"""Layers that no kernel can stand in for."""

from torch import nn

from sparsefront.forward_hooks import has_forward_hooks
from sparsefront.inference.sparse_conv import conv_unsupported_reason

METHODS: dict[type[nn.Module], tuple[str, ...]] = {nn.Linear: ("forward",), nn.Conv2d: ("forward", "_conv_forward")}


def layer_unsupported_reason(layer: nn.Module) -> str | None:
    """Why no kernel can stand in for this layer, or None.

    A kernel computes what Linear and Conv2d do. A subclass may do more, such as LoRA's second product or padding of its own, and
    hooks may read or change what the layer gives.
    """
    name = type(layer).__name__
    kind = next((kind for kind in METHODS if isinstance(layer, kind)), None)
    if kind is None:
        return f"a {name} is neither Linear nor Conv2d"
    for method in METHODS[kind]:
        if method in vars(layer) or getattr(type(layer), method) is not getattr(kind, method):
            return f"a {name} with a {method} of its own may compute something else than {kind.__name__}"
    if has_forward_hooks(layer):
        return f"a {name} with forward hooks, which a kernel would not call"
    return conv_unsupported_reason(layer) if isinstance(layer, nn.Conv2d) else None
