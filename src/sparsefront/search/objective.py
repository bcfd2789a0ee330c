"""What a search optimizes: a field of the result and which end of it is better."""

import re
from dataclasses import dataclass

from sparsefront.errors import InvalidSetting
from sparsefront.report.columns import MORE_IS_BETTER

DIRECTIONS = ("maximize", "minimize")
LESS_IS_BETTER = re.compile(r"_(ms|seconds|error)$|_bytes(_|$)")


@dataclass(frozen=True)
class Objective:
    """Args:
    name: of a field of the result.
    direction: maximize or minimize.
    """

    name: str
    direction: str


def objective(text: str) -> Objective:
    """An entry of `optimize`: `sparse` and `latency_sparse_ms` have a better end of their own; `maximize:FIELD` names it.

    Raises:
        InvalidSetting: the field has none of its own, or the word before the colon is another one.
    """
    direction, colon, name = text.rpartition(":")
    if colon and direction not in DIRECTIONS:
        raise InvalidSetting("optimize", text, f"is written as {' or '.join(f'{word}:{name}' for word in DIRECTIONS)}")
    if not colon:
        direction = _own_direction(name)
    return Objective(name, direction)


def field_of(text: str) -> str:
    """The field that an entry of `optimize` names."""
    return text.rpartition(":")[2]


def _own_direction(name: str) -> str:
    if name.removeprefix("val_") in MORE_IS_BETTER:
        return "maximize"
    if LESS_IS_BETTER.search(name):
        return "minimize"
    named = " or ".join(f"{word}:{name}" for word in DIRECTIONS)
    raise InvalidSetting("optimize", name, f"does not tell which end is better: write {named}")
