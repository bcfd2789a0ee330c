"""Peers: third-party libraries with their fastest settings, which may fail for any reason."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch

from sparsefront_kernels.bench.baselines import nm_spmm, quack, torch_libraries, triton_bsr
from sparsefront_kernels.bench.provider import Provider, measure
from sparsefront_kernels.bench.rows import Row

Timed = tuple[str, float | None]  # a peer's kernel with granularity, and microseconds; ("", None) if none ran
QUICK_SAMPLES = 5  # for finding the fastest of a peer's settings


@dataclass(frozen=True)
class Peer:
    """A sparse library.

    Args:
        providers: its settings on a problem, with weights of its own pattern or, if it has a `family`, with the same weight
            as our kernels; the fastest per kernel and granularity is used.
        unsupported_reason: (dtype name, sparsity) -> why it is never supported, or None.
        family: storage of the weights that it shares with our kernels; empty: its own weights.
    """

    providers: Callable[..., list[Provider]]
    unsupported_reason: Callable[[str, float], str | None]
    family: str = ""


DENSE = torch_libraries.dense_providers
PEERS = {
    "cusparselt": Peer(torch_libraries.cusparselt_providers, torch_libraries.cusparselt_unsupported_reason),
    "triton_bsr": Peer(triton_bsr.providers, triton_bsr.unsupported_reason),
    "cusparse_csr": Peer(torch_libraries.cusparse_csr_providers, torch_libraries.cusparse_csr_unsupported_reason),
    quack.KERNEL: Peer(quack.providers, quack.unsupported_reason, family=quack.FAMILY),
    triton_bsr.SAME_MASK_KERNEL: Peer(
        triton_bsr.same_mask_providers, triton_bsr.unsupported_reason, family=triton_bsr.FAMILY
    ),
    nm_spmm.KERNEL: Peer(nm_spmm.providers, nm_spmm.unsupported_reason, family=nm_spmm.FAMILY),
}


def fastest_of_each(make: Callable[[], Iterable[Provider]], cannot: Callable[[Exception], None]) -> list[Provider]:
    """The fastest provider of a peer for each kernel and granularity.

    Args:
        make: returns its providers.
        cannot: receives the reasons why the peer, or a setting, does not run; others are still measured.
    """
    settings: dict[tuple[str, int], list[Provider]] = {}
    try:
        for provider in make():
            settings.setdefault((provider.kernel, provider.granularity), []).append(provider)
    except Exception as error:  # any reason: the peer is left out and reported
        cannot(error)
    best = (_fastest(providers, cannot) for providers in settings.values())
    return [provider for provider in best if provider is not None]


def reason_of(error: Exception) -> str:
    """The first line of an error message, after pending GPU errors are cleared."""
    torch.cuda.synchronize()
    return (str(error).splitlines() or [type(error).__name__])[0]


def _fastest(providers: Sequence[Provider], cannot: Callable[[Exception], None]) -> Provider | None:
    times: list[tuple[float, int]] = []
    for place, provider in enumerate(providers):
        try:
            latency = measure(provider, samples=QUICK_SAMPLES).latency
        except Exception as error:
            cannot(error)
            continue
        times.append((latency.median_us if latency else torch.inf, place))
    return providers[min(times)[1]] if times else None


def best_peer(rows: Iterable[Row], known: Iterable[dict[str, str]]) -> Timed:
    """Kernel with granularity, and microseconds, of the fastest of these rows and of earlier rows (as text)."""
    times = {f"{row.kernel} {row.granularity}": row.latency_us for row in rows if row.latency_us is not None}
    for row in known:
        if row["latency_us"]:
            times.setdefault(f"{row['kernel']} {row['granularity']}", float(row["latency_us"]))
    best = min(times, key=times.__getitem__, default="")
    return best, times.get(best)


def fastest(*peers: Timed) -> Timed:
    """The fastest of several."""
    return min(peers, key=lambda timed: torch.inf if timed[1] is None else timed[1])
