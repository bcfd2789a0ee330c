"""Finding a measured launch again, for a problem that was measured or for a like one."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeVar

Launch = TypeVar("Launch")


def nearest_launch(
    entries: Mapping[str, Mapping[str, Any]], launch_type: type[Launch], shape: str, amount: float
) -> Launch | None:
    """The launch measured for this shape at the amount of work nearest to `amount`, or None.

    Args:
        entries: those of a `TunedKernel`, under keys "<shape><amount>".
        launch_type: a dataclass; what an entry holds beside its fields is left out.
    """
    measured = {float(key.removeprefix(shape)): entry for key, entry in entries.items() if key.startswith(shape)}
    if not measured:
        return None
    entry = measured[min(measured, key=lambda known: abs(known - amount))]
    return launch_type(**{part.name: entry[part.name] for part in fields(launch_type) if part.name in entry})
