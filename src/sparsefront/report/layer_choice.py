"""Which of a run's pruned layers get a picture."""

import re
from collections.abc import Mapping, Sequence

from sparsefront.errors import InvalidSetting

MOST_CHOSEN = 6


def choose_layers(shapes: Mapping[str, tuple[int, int]], expressions: Sequence[str] | None) -> list[str]:
    """The layers to draw, in the order of the network.

    Args:
        shapes: pruned layer -> [N, K].
        expressions: regular expressions; a layer whose name one of them finds is drawn. None: the first layer of each
            kind (names that differ in their numbers only, of one shape), the first six kinds.
    Raises:
        InvalidSetting: an expression of `mask_layers` that finds no pruned layer.
    """
    if expressions is None:
        first_of_kind: dict[tuple, str] = {}
        for name, shape in shapes.items():
            first_of_kind.setdefault((re.sub(r"\d+", "*", name), shape), name)
        return list(first_of_kind.values())[:MOST_CHOSEN]
    for expression in expressions:
        if not any(re.search(expression, name) for name in shapes):
            names = list(shapes)
            listed = ", ".join(names[:12]) + (f" and {len(names) - 12} more" if len(names) > 12 else "")
            raise InvalidSetting("mask_layers", expression, f"finds no layer that is pruned; there are {listed}")
    return [name for name in shapes if any(re.search(expression, name) for expression in expressions)]
