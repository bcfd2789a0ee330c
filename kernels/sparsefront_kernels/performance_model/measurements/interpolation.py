"""Between measurements, and only between them."""

from collections.abc import Mapping, Sequence

Values = tuple[float, ...]


def between(points: Mapping[float, Values], at: float, *, slack: float = 0.0) -> Values | None:
    """Linear interpolation of each value; None outside the points.

    Args:
        points: place -> values, of equal number.
        slack: how far outside still counts as the nearest end.
    """
    if not points or not min(points) - slack <= at <= max(points) + slack:
        return None
    at = min(max(at, min(points)), max(points))
    low, high = max(place for place in points if place <= at), min(place for place in points if place >= at)
    share = 0.0 if high == low else (at - low) / (high - low)
    return tuple((1 - share) * one + share * other for one, other in zip(points[low], points[high], strict=True))


def mean(rows: Sequence[Values]) -> Values:
    """Of each value."""
    return tuple(sum(column) / len(rows) for column in zip(*rows, strict=True))
