"""2:4 on sparse tensor cores through cuSPARSELt; its own search chooses the algorithm."""

import torch

from sparsefront_kernels.bench.contender import Contender
from sparsefront_kernels.bench.setting import Setting
from sparsefront_kernels.bench.weights import two_of_four

ROW_MULTIPLE = 8  # M that cuSPARSELt takes in 16-bit types


def contenders(setting: Setting) -> list[Contender]:
    """With the algorithm of its search and with its default one; none where the sparsity is not 50 %.

    Raises:
        RuntimeError: this PyTorch has no cuSPARSELt, or it refuses the shape.
    """
    shape = setting.shape
    if setting.sparsity != 0.5 or setting.dtype == torch.float32 or shape.m % ROW_MULTIPLE:
        return []
    weight = setting.weight() * two_of_four(shape.n, shape.k, setting.device)
    expected = setting.expected(weight)
    packed = torch._cslt_compress(weight)
    algorithms = {0, int(torch._cslt_sparse_mm_search(packed, setting.x.t()))}

    def maker(algorithm: int):
        def make():
            x, w = setting.x.clone(), packed.clone()
            return lambda: torch._cslt_sparse_mm(w, x.t(), alg_id=algorithm)

        return make

    return [
        Contender(
            family="semi_structured",
            kernel="cusparselt",
            pattern="n_m",
            granularity=4,
            distribution="balanced",
            layout="row_major",  # of X; Y comes out as [N, M]
            sparsity=0.5,
            operand_bytes=packed.nbytes + setting.activation_bytes,
            weight_bytes=packed.nbytes,
            make=maker(algorithm),
            as_rows=lambda y: y.t(),
            expected=expected,
        )
        for algorithm in sorted(algorithms)
    ]
