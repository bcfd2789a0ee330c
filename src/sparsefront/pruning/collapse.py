"""Layers that pruning emptied, or all but emptied: where there are any, a result measures this as much as the pattern."""

import re
from collections.abc import Iterable, Mapping

NEARLY = 0.1  # of the target density: a layer that keeps less has collapsed
LEAST = 0.01  # and one that keeps less than this, though at most half of the target density, where that is lower still
ALIKE = "allocation=per_layer"
AT_LEAST = "allocation=global_threshold allocation.min_density_share=0.2"


def collapsed_layers(sparsities: Mapping[str, float], target: float) -> dict[str, float]:
    """The layers that keep less than a tenth of the target density or less than 1 %, among them those that lost every weight.

    Where the target density itself comes near 1 %, half of it counts: not every layer can have collapsed.

    Args:
        sparsities: layer -> its fraction of zeros.
        target: sparsity wanted over all prunable weights, in [0, 1).
    Returns:
        layer -> the density that it keeps; exactly 0 where every weight is gone.
    """
    limit = max(NEARLY * (1 - target), min(LEAST, (1 - target) / 2))
    densities = {layer: 1 - sparsity for layer, sparsity in sparsities.items()}
    return {layer: density for layer, density in densities.items() if density < limit}


def collapse_warning(sparsities: Mapping[str, float], target: float, allocation: str) -> str | None:
    """One line with the layers that collapsed and the settings that help; None where none did.

    Args:
        sparsities, target: see `collapsed_layers`.
        allocation: name of the one in use; a floor helps a global threshold, one sparsity for all helps every other.
    """
    collapsed = collapsed_layers(sparsities, target)
    if not collapsed:
        return None
    helps = {"global_threshold": f"{ALIKE}, or {AT_LEAST}", "per_layer": "a lower sparsity or a smaller granularity"}
    return (
        f"{len(collapsed)} of {len(sparsities)} layers collapsed at target density {1 - target:.3g}: "
        f"{collapse_text(collapsed)}. Such a result measures the collapse as much as the pattern; what helps: "
        f"{helps.get(allocation, ALIKE)}"
    )


def collapse_text(collapsed: Mapping[str, float]) -> str:
    """The layers by name: `blocks.[0,1].fc2 lost every weight, blocks.2.fc2 kept at most 0.012`; none: "none"."""
    lost = [layer for layer, density in collapsed.items() if density == 0]
    nearly = {layer: density for layer, density in collapsed.items() if density > 0}
    parts = [f"{_joined(lost)} lost every weight"] if lost else []
    if nearly:
        parts.append(f"{_joined(nearly)} kept at most {max(nearly.values()):.2g}")
    return ", ".join(parts) or "none"


def _joined(layers: Iterable[str]) -> str:
    """Names that differ in their first number alone are written as one: `blocks.[0,3].fc2`."""
    numbers: dict[tuple[str, str], list[str]] = {}
    for layer in layers:
        before, number, after = re.fullmatch(r"(\D*)(\d*)(.*)", layer).groups()
        numbers.setdefault((before, after), []).append(number)
    names = []
    for (before, after), found in numbers.items():
        number = found[0] if len(found) == 1 else f"[{','.join(found)}]"
        names.append(f"{before}{number}{after}")
    return ", ".join(names)
