"""In which order functions that are timed in turn are called."""

from collections.abc import Sequence


def balanced_orders(names: Sequence[str]) -> list[list[str]]:
    """Orders of rounds, to be run through again and again, in which each name follows each other one equally often.

    What ran before decides what lies in the L2 cache and how warm the GPU is. A function that follows itself finds its own
    weights there; here none does, from one round to the next either. Two can only alternate, three need two orders.

    Every round has each name once, so that slow changes of clock and heat weigh on all alike: of a steady drift over r rounds
    1 / 2r comes between two names at most. Rounds follow one another without a pause, so that it means nothing to be the
    first or the last of one, and one name may always be the last: what remains is that the others, in a Williams design,
    begin and end equally often. An odd number of others needs each order backwards too.

    Args:
        names: one or more.
    Source: Williams, "Experimental designs balanced for the estimation of residual effects of treatments", 1949.
    """
    *others, last = names
    n = len(others)
    zigzag = [(place + 1) // 2 if place % 2 else -(place // 2) for place in range(n)]  # 0, 1, -1, 2, -2, ...
    orders = [[others[(place + shift) % n] for place in zigzag] for shift in range(max(n, 1))]
    if n % 2:
        orders += [order[::-1] for order in orders]
    return [[*order, last] for order in orders]
