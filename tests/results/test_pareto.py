"""Front and area against brute force on small grids of whole numbers, where ties are common."""

import random

import numpy as np
import pytest

from sparsefront.results.comparable import compute_areas, pareto_front

SIDE = 7


def random_points(seed: int) -> list[tuple[int, int]]:
    source = random.Random(seed)
    return [(source.randrange(SIDE), source.randrange(SIDE)) for _ in range(source.randrange(12))]


def beats(one: tuple[int, int], other: tuple[int, int]) -> bool:
    return one != other and one[0] <= other[0] and one[1] >= other[1]


@pytest.mark.parametrize("seed", range(40))
def test_front_is_what_nothing_beats(seed):
    points = random_points(seed)
    unbeaten = {point for point in points if not any(beats(other, point) for other in points)}
    front = [points[index] for index in pareto_front(points)]
    assert set(front) == unbeaten and len(front) == len(unbeaten)
    assert front == sorted(front)


@pytest.mark.parametrize("seed", range(40))
def test_area_counts_the_dominated_unit_squares(seed):
    points, reference = random_points(seed), (SIDE - 1, 1)
    squares = sum(
        any(cost <= column and quality >= line + 1 for cost, quality in points)
        for column in range(reference[0])
        for line in range(reference[1], SIDE)
    )
    if points:
        both = [points, [(cost, -9) for cost, _ in points]]
        costs, qualities = np.moveaxis(np.array(both, dtype=float), 2, 0)
        assert list(compute_areas(costs, qualities, reference)) == [squares, 0]


def test_first_of_equal_points_stands():
    assert pareto_front([(2, 2), (1, 1), (1, 1), (3, 2)]) == [1, 0]
