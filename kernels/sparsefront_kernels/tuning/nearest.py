"""Finding the measurement nearest to a problem that was not measured itself."""

from typing import Any

from sparsefront_kernels.tuning.store import TunedKernel


def nearest_entry(table: TunedKernel, shape: str, value: float) -> dict[str, Any] | None:
    """Of the entries whose key is `shape` followed by a number, the one with the number nearest to `value`, or None."""
    found = {float(key[len(shape) :]): entry for key, entry in table.entries.items() if key.startswith(shape)}
    return found[min(found, key=lambda number: abs(number - value))] if found else None
