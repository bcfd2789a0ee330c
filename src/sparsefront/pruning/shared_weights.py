"""Layers that share one weight: what the mask of one prunes is gone in all of them, so that they need one mask."""

from collections.abc import Iterable, Mapping

from torch import nn

from sparsefront.errors import InvalidSetting


def sharing_layers(net: nn.Module, layers: Iterable[str]) -> dict[str, list[str]]:
    """Each of the layers -> all of them that have its weight, itself included; also on the meta device."""
    weights = {name: net.get_submodule(name).weight for name in layers}
    names_of: dict[int, list[str]] = {}
    for name, weight in weights.items():
        names_of.setdefault(id(weight), []).append(name)
    return {name: names_of[id(weight)] for name, weight in weights.items()}


def require_none_shared(net: nn.Module, layers: Iterable[str], allocation: str) -> None:
    """Raises:
    InvalidSetting: an allocation that chooses for layers one by one, and a weight that several of them share.
    """
    for sharing in sharing_layers(net, layers).values():
        if len(sharing) > 1:
            allowed = f"chooses layer by layer, and {', '.join(sharing)} share one weight: leave them dense"
            raise InvalidSetting("allocation", allocation, allowed)


def require_one_sparsity(
    net: nn.Module, layers: Iterable[str], allocation: str, sparsities: Mapping[str, float] | None
) -> None:
    """Raises:
    InvalidSetting: layers that share one weight and have been given different sparsities; None: all have the same.
    """
    for name, sharing in sharing_layers(net, layers).items():
        for other in sharing:
            if sparsities is not None and sparsities[other] != sparsities[name]:
                allowed = (
                    f"gives {name} a sparsity of {sparsities[name]:g} and {other}, which shares its weight, "
                    f"one of {sparsities[other]:g}: they need the same"
                )
                raise InvalidSetting("allocation", allocation, allowed)
