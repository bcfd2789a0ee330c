"""What rounding to whole groups did to a sparsity: missed targets, collapsed layers. Needs no torch."""

import re
from collections.abc import Iterable, Mapping

# The target: either a sparsity to reach, or a latency budget, for which the sparsity is only a ceiling.

BUDGET_KEYS = ("speedup", "latency_ms")  # settings of allocations with a budget
MOST_MISSED = 0.02  # largest deviation at which the target still describes the network


def has_budget(allocation: object) -> bool:
    """Whether the allocation meets a latency or speedup, so that the sparsity is only a ceiling."""
    return any(getattr(allocation, key, None) is not None for key in BUDGET_KEYS)


def misses(achieved: float, target: float) -> bool:
    """Whether the achieved sparsity is so far off that the target no longer describes it."""
    return round(abs(achieved - target), 6) > MOST_MISSED


NEARLY = 0.1  # of the target density: a layer that keeps less has collapsed
LEAST = 0.01  # density below which a layer has collapsed too, capped at half of the target density
ALIKE = "allocation=per_layer"
AT_LEAST = "allocation=global_threshold allocation.min_density_share=0.2"


def select_collapsed(sparsities: Mapping[str, float], target: float) -> dict[str, float]:
    """Find layers that keep less than a tenth of the target density or less than 1 %, including empty ones.

    If the target density itself is near 1 %, half of it is the limit instead: not every layer can have collapsed.

    Args:
        sparsities: layer -> its fraction of zeros.
        target: sparsity over all prunable weights, in [0, 1).
    Returns:
        layer -> its density; exactly 0 if it is empty.
    """
    limit = max(NEARLY * (1 - target), min(LEAST, (1 - target) / 2))
    densities = {layer: 1 - sparsity for layer, sparsity in sparsities.items()}
    return {layer: density for layer, density in densities.items() if density < limit}


def collapse_warning(sparsities: Mapping[str, float], target: float, allocation: str) -> str | None:
    """One line that lists the collapsed layers and the settings that help; None if no layer collapsed.

    Args:
        sparsities, target: see `select_collapsed`.
        allocation: name of the one in use: a global threshold needs a minimum density, the others the same sparsity everywhere.
    """
    collapsed = select_collapsed(sparsities, target)
    if not collapsed:
        return None
    helps = {"global_threshold": f"{ALIKE}, or {AT_LEAST}", "per_layer": "a lower sparsity or a smaller granularity"}
    return (
        f"{len(collapsed)} of {len(sparsities)} layers collapsed at target density {1 - target:.3g}: "
        f"{collapse_text(collapsed)}. Such a result measures the collapse as much as the pattern; what helps: "
        f"{helps.get(allocation, ALIKE)}"
    )


def collapse_text(collapsed: Mapping[str, float]) -> str:
    """Format the layers: `blocks.[0,1].fc2 lost every weight, blocks.2.fc2 kept at most 0.012`, or "none"."""
    lost = [layer for layer, density in collapsed.items() if density == 0]
    nearly = {layer: density for layer, density in collapsed.items() if density > 0}
    parts = [f"{_merge_names(lost)} lost every weight"] if lost else []
    if nearly:
        parts.append(f"{_merge_names(nearly)} kept at most {max(nearly.values()):.2g}")
    return ", ".join(parts) or "none"


def _merge_names(layers: Iterable[str]) -> str:
    """Merge names that differ only in their first number: `blocks.[0,3].fc2`."""
    numbers: dict[tuple[str, str], list[str]] = {}
    for layer in layers:
        parts = re.fullmatch(r"(\D*)(\d*)(.*)", layer)
        assert parts is not None  # the regular expression always matches
        before, number, after = parts.groups()
        numbers.setdefault((before, after), []).append(number)
    names = []
    for (before, after), indices in numbers.items():
        number = indices[0] if len(indices) == 1 else f"[{','.join(indices)}]"
        names.append(f"{before}{number}{after}")
    return ", ".join(names)
