"""The fastest settings of a peer: others' code, which may fail for reasons of its own."""

from collections.abc import Callable, Iterable, Sequence

import torch

from sparsefront_kernels.bench.contender import Contender, measure
from sparsefront_kernels.bench.row import Row

Timed = tuple[str, float | None]  # a peer's kernel with its granularity, and microseconds; ("", None) where none ran
QUICK_SAMPLES = 5  # where the fastest of a peer's settings is looked for


def fastest_of_each(make: Callable[[], Iterable[Contender]], cannot: Callable[[Exception], None]) -> list[Contender]:
    """Of each kernel and granularity of a peer the contender that is fastest.

    Args:
        make: its contenders.
        cannot: takes why the peer, or one of its settings, does not run; the rest is measured all the same.
    """
    settings: dict[tuple[str, int], list[Contender]] = {}
    try:
        for contender in make():
            settings.setdefault((contender.kernel, contender.granularity), []).append(contender)
    except Exception as error:  # any reason not to run: the row is left out and it is said
        cannot(error)
    best = (_fastest(contenders, cannot) for contenders in settings.values())
    return [contender for contender in best if contender is not None]


def reason_of(error: Exception) -> str:
    """The first line of what an error says, once what it left on the GPU is over."""
    torch.cuda.synchronize()
    return (str(error).splitlines() or [type(error).__name__])[0]


def _fastest(contenders: Sequence[Contender], cannot: Callable[[Exception], None]) -> Contender | None:
    times: list[tuple[float, int]] = []
    for place, contender in enumerate(contenders):
        try:
            latency = measure(contender, samples=QUICK_SAMPLES).latency
        except Exception as error:
            cannot(error)
            continue
        times.append((latency.median_us if latency else torch.inf, place))
    return contenders[min(times)[1]] if times else None


def best_peer(rows: Iterable[Row], known: Iterable[dict[str, str]]) -> Timed:
    """Kernel with granularity, and microseconds, of the fastest of these rows and of those measured before, as text."""
    times = {f"{row.kernel} {row.granularity}": row.latency_us for row in rows if row.latency_us is not None}
    for row in known:
        if row["latency_us"]:
            times.setdefault(f"{row['kernel']} {row['granularity']}", float(row["latency_us"]))
    best = min(times, key=times.__getitem__, default="")
    return best, times.get(best)


def fastest(*peers: Timed) -> Timed:
    """The fastest of several."""
    return min(peers, key=lambda timed: torch.inf if timed[1] is None else timed[1])
