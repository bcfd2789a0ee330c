"""What the kernels are compared with: a module per library, with `providers`, and `unsupported_reason` where it is sparse."""

from collections.abc import Callable
from dataclasses import dataclass

from sparsefront_kernels.bench.baselines import (
    cublas,
    cusparse_csr,
    cusparselt,
    quack,
    triton_bsr,
    triton_bsr_same_mask,
)
from sparsefront_kernels.bench.baselines.nm_spmm import peer as nm_spmm
from sparsefront_kernels.bench.provider import Provider

DENSE = cublas.providers


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


PEERS = {
    "cusparselt": Peer(cusparselt.providers, cusparselt.unsupported_reason),
    "triton_bsr": Peer(triton_bsr.providers, triton_bsr.unsupported_reason),
    "cusparse_csr": Peer(cusparse_csr.providers, cusparse_csr.unsupported_reason),
    quack.KERNEL: Peer(quack.providers, quack.unsupported_reason, family=quack.FAMILY),
    triton_bsr_same_mask.KERNEL: Peer(
        triton_bsr_same_mask.providers, triton_bsr.unsupported_reason, family=triton_bsr_same_mask.FAMILY
    ),
    nm_spmm.KERNEL: Peer(nm_spmm.providers, nm_spmm.unsupported_reason, family=nm_spmm.FAMILY),
}
