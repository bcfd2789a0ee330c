"""What was asked for: a sparsity, which a network has or misses, or a budget, for which the sparsity is a ceiling."""

BUDGET_KEYS = ("speedup", "latency_ms")  # of an allocation that is given a budget
MOST_MISSED = 0.02  # of the sparsity that was asked for, where it still names the network


def misses(achieved: float, target: float) -> bool:
    """Whether a sparsity lies so far from the one that was asked for that it is another one."""
    return round(abs(achieved - target), 6) > MOST_MISSED
