"""The trade-off in two dimensions: which points no other point beats, and the area that they dominate."""

from collections.abc import Sequence

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


def dominated_area(points: Sequence[Point], reference: Point) -> float:
    """Area between the front and a reference point that costs more and is worse (the two-dimensional hypervolume).

    Points that are not better than the reference in both directions add nothing.
    """
    inside = [point for point in points if point[0] < reference[0] and point[1] > reference[1]]
    front = [inside[index] for index in pareto_front(inside)]
    ends = [cost for cost, _ in front[1:]] + [reference[0]]
    return sum((end - cost) * (quality - reference[1]) for (cost, quality), end in zip(front, ends))
