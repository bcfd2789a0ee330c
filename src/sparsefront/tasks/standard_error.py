"""How far a metric may lie from what a larger test set of the same kind would give: its standard error."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

DRAWS = 200


def error_of_proportion(proportion: float, n: int) -> float:
    """Of a share of n independent samples: √(p (1 - p) / n)."""
    return math.sqrt(proportion * (1 - proportion) / n)


def error_of_mean(values: Tensor) -> float:
    """Of the mean of n independent values, [n]: their standard deviation / √n; 0 for a lone value, which tells nothing."""
    return float(values.double().std() / math.sqrt(len(values))) if len(values) > 1 else 0.0


def error_by_bootstrap(metric: Callable[[Tensor], float], n: int) -> float:
    """Of a metric that is no mean over samples: its spread over test sets drawn with replacement from this one.

    Args:
        metric: indices [n] into the samples -> the metric of those; draws for which it is not defined do not count.
    Source: Efron, "Bootstrap Methods: Another Look at the Jackknife", 1979. The generator's seed is fixed.
    """
    generator = torch.Generator().manual_seed(0)
    drawn = torch.tensor([metric(torch.randint(n, (n,), generator=generator)) for _ in range(DRAWS)])
    defined = drawn[drawn.isfinite()]
    return float(defined.double().std()) if len(defined) > 1 else 0.0
