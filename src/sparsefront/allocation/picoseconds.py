"""Measured times as whole numbers, in which they add up without rounding."""

import math

PER_MICROSECOND = 10**6


def at_most(latency_us: float) -> int:
    """Whole picoseconds, rounded up: a time is never taken for shorter than it was measured."""
    return math.ceil(_picoseconds(latency_us))


def at_least(latency_us: float) -> int:
    """Whole picoseconds, rounded down: what may be spent, or is saved, is never overstated."""
    return math.floor(_picoseconds(latency_us))


def _picoseconds(latency_us: float) -> float:
    # The digits that go here are what a product of decimal numbers leaves behind; no timer sees them.
    return round(latency_us * PER_MICROSECOND, 3)
