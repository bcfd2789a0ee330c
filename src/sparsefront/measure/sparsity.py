"""The sparsity that was reached, counted from masks and parameters."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from torch import Tensor, nn


@dataclass(frozen=True)
class AchievedSparsity:
    """Fractions of zeros in [0, 1].

    Args:
        sparsity_achieved: over all prunable weights, layers that stayed dense included.
        sparsity_whole_model: pruned weights / all parameters (embeddings, norms, biases and head too).
        layers: prunable layer -> its sparsity; 0 where it stayed dense.
        weight_shares: prunable layer -> its part of all prunable weights.
    """

    sparsity_achieved: float
    sparsity_whole_model: float
    layers: dict[str, float]
    weight_shares: dict[str, float]


def achieved_sparsity(net: nn.Module, masks: Mapping[str, Tensor], prunable: Iterable[str]) -> AchievedSparsity:
    """Count what the masks remove.

    Args:
        net: any device, meta included; only shapes are read.
        masks: layer -> bool of as many elements as its weight, True = keep.
        prunable: names of all layers that could have been pruned.
    Raises:
        ValueError: a mask of another size than its weight, or for a layer that is not prunable.
    """
    sizes = {name: net.get_submodule(name).weight.numel() for name in prunable}
    unknown = set(masks) - set(sizes)
    if unknown:
        raise ValueError(f"masks for layers that are not prunable: {', '.join(sorted(unknown))}")
    pruned = {}
    for name, size in sizes.items():
        mask = masks.get(name)
        if mask is not None and mask.numel() != size:
            raise ValueError(f"the mask of {name} has {mask.numel()} elements, its weight {size}")
        pruned[name] = 0 if mask is None else size - int(mask.sum())
    removed, total = sum(pruned.values()), sum(sizes.values())
    return AchievedSparsity(
        sparsity_achieved=removed / total if total else 0.0,
        sparsity_whole_model=removed / sum(parameter.numel() for parameter in net.parameters()),
        layers={name: pruned[name] / size for name, size in sizes.items()},
        weight_shares={name: size / total for name, size in sizes.items()},
    )
