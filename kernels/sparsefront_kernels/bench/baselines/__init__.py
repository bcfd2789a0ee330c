"""What the kernels are held against: one module per library, each a function (Setting) -> contenders."""

from collections.abc import Callable

from sparsefront_kernels.bench.baselines import cublas, cusparse_csr, cusparselt, triton_bsr
from sparsefront_kernels.bench.contender import Contender
from sparsefront_kernels.bench.setting import Setting

DENSE: Callable[[Setting], list[Contender]] = cublas.contenders
PEERS: dict[str, Callable[[Setting], list[Contender]]] = {
    "cusparselt": cusparselt.contenders,
    "triton_bsr": triton_bsr.contenders,
    "cusparse_csr": cusparse_csr.contenders,
}
