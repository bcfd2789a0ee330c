"""What our kernels are compared with, and the fastest settings of it: third-party code, which may fail for any reason."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch

from sparsefront_kernels.bench.baselines import nm_spmm, quack, torch_libraries, triton_bsr
from sparsefront_kernels.bench.provider import Provider, measure
from sparsefront_kernels.bench.rows import Row

Timed = tuple[str, float | None]  # a peer's kernel with its granularity, and microseconds; ("", None) where none ran
QUICK_SAMPLES = 5  # where the fastest of a peer's settings is looked for


@dataclass(frozen=True)
class Peer:
    """A sparse library.

    Args:
        providers: its settings on a problem, each with a weight of the peer's own pattern, or, where it has a `family`, on
            a problem and the weight that our kernels multiply by; the fastest of each kernel and granularity counts.
        unsupported_reason: (dtype name, sparsity) -> why it never runs there, or None.
        family: whose weights it multiplies by, those of our kernels; empty: weights of its own.
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
    """Of each kernel and granularity of a peer the provider that is fastest.

    Args:
        make: its providers.
        cannot: takes why the peer, or one of its settings, does not run; the rest is measured all the same.
    """
    settings: dict[tuple[str, int], list[Provider]] = {}
    try:
        for provider in make():
            settings.setdefault((provider.kernel, provider.granularity), []).append(provider)
    except Exception as error:  # any reason not to run: the row is left out and it is said
        cannot(error)
    best = (_fastest(providers, cannot) for providers in settings.values())
    return [provider for provider in best if provider is not None]


def reason_of(error: Exception) -> str:
    """The first line of what an error says, once what it left on the GPU is over."""
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
