"""What the kernels are held against: one module per library, each with `contenders`, and `refusal` where it is sparse."""

from collections.abc import Callable
from dataclasses import dataclass

from sparsefront_kernels.bench.baselines import cublas, cusparse_csr, cusparselt, quack, triton_bsr
from sparsefront_kernels.bench.contender import Contender

DENSE = cublas.contenders


@dataclass(frozen=True)
class Peer:
    """A sparse library.

    Args:
        contenders: its settings on a problem, each with a weight of the peer's own pattern, or, where `same_mask`, on a
            problem and the weight that our kernels multiply by; the fastest of each kernel and granularity counts.
        refusal: (dtype name, sparsity) -> why it never runs there, or None.
        same_mask: whether it multiplies by our kernels' weights.
    """

    contenders: Callable[..., list[Contender]]
    refusal: Callable[[str, float], str | None]
    same_mask: bool = False


PEERS = {
    "cusparselt": Peer(cusparselt.contenders, cusparselt.refusal),
    "triton_bsr": Peer(triton_bsr.contenders, triton_bsr.refusal),
    "cusparse_csr": Peer(cusparse_csr.contenders, cusparse_csr.refusal),
    quack.KERNEL: Peer(quack.contenders, quack.refusal, same_mask=True),
}
