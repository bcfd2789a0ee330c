"""Which n:m the layers of a network have, in words."""

import math
from collections import Counter
from collections.abc import Mapping

from sparsefront.patterns.base import Pattern
from sparsefront.patterns.structure.blocks import BlockPattern


def windows_text(pattern: Pattern, layers: Mapping[str, tuple[tuple[int, ...], float]]) -> str | None:
    """`2:4`; where layers differ, each with its number of layers, the commonest first: `1:4 in 20, 3:32 in 4`.

    Args:
        layers: pruned layer -> shape of its weight (of a convolution too), and its own final sparsity.
    Returns:
        None for a pattern whose distribution has no windows.
    """
    if not isinstance(pattern, BlockPattern):
        return None
    windows = Counter(
        pattern.window((shape[0], math.prod(shape[1:])), sparsity) for shape, sparsity in layers.values() if sparsity
    )
    found = [(f"{window.n}:{window.m}", count) for window, count in windows.most_common() if window is not None]
    if len(found) == 1:
        return found[0][0]
    return ", ".join(f"{text} in {count}" for text, count in found) or None
