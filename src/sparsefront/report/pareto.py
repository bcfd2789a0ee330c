"""The trade-off in two dimensions: which points no other point beats, and the area that they dominate."""

from collections.abc import Sequence

import numpy as np

Point = tuple[float, float]  # (cost, quality): less cost is better, more quality is better


def pareto_front(points: Sequence[Point]) -> list[int]:
    """Indices of the points that no other point beats, by rising cost (and so by rising quality).

    A point is beaten by one that costs no more and is no worse, and differs; of equal points the first stands for all.
    """
    order = sorted(range(len(points)), key=lambda index: (points[index][0], -points[index][1], index))
    front: list[int] = []
    for index in order:
        if not front or points[index][1] > points[front[-1]][1]:
            front.append(index)
    return front


def dominated_areas(costs: np.ndarray, qualities: np.ndarray, reference: Point) -> np.ndarray:
    """Area between the front and a reference point that costs more and is worse (the two-dimensional hypervolume).

    Points that are not better than the reference in both directions add nothing.

    Args:
        costs, qualities: [draws, points], float; each line is a set of points of its own.
        reference: (cost, quality).
    Returns:
        [draws].
    """
    order = np.argsort(costs, axis=1, kind="stable")
    costs = np.minimum(np.take_along_axis(costs, order, axis=1), reference[0])
    best = np.maximum.accumulate(np.take_along_axis(qualities, order, axis=1), axis=1)
    ends = np.concatenate([costs[:, 1:], np.full((len(costs), 1), reference[0])], axis=1)
    return ((ends - costs) * np.maximum(best - reference[1], 0)).sum(1)
