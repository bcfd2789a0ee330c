"""2:4 on sparse tensor cores through cuSPARSELt; its own search chooses the algorithm."""

import torch

from sparsefront_kernels.bench.contender import Contender
from sparsefront_kernels.bench.copies import numbered
from sparsefront_kernels.bench.setting import Setting
from sparsefront_kernels.bench.weights import two_of_four

ROW_MULTIPLE = 8  # of M, in 16-bit types; 4 would do in 32-bit ones


def refusal(dtype_name: str, sparsity: float) -> str | None:
    """Why it does not run, whatever the shape, or None."""
    if sparsity != 0.5:
        return f"2:4 is a sparsity of 0.5, not {sparsity:g}"
    return "sparse tensor cores multiply float32 as TF32" if dtype_name == "fp32" else None


def contenders(setting: Setting) -> list[Contender]:
    """With the algorithm of its search and with its default one.

    X is padded beforehand to an M that it takes; the padding is not in its time.

    Raises:
        RuntimeError: this PyTorch has no cuSPARSELt, or it refuses the shape.
    """
    shape = setting.shape
    rows = -(-shape.m // ROW_MULTIPLE) * ROW_MULTIPLE
    weight = setting.weight() * two_of_four(shape.n, shape.k, setting.device)
    expected = setting.expected(weight)
    packed = torch._cslt_compress(weight)
    copies = numbered(packed)
    algorithms = {0, int(torch._cslt_sparse_mm_search(packed, setting.x_in("row_to_feature", 0, rows=rows).t()))}

    def maker(algorithm: int):
        def make(copy: int):
            x, w = setting.x_in("row_to_feature", copy, rows=rows), copies(copy)
            return lambda: torch._cslt_sparse_mm(w, x.t(), alg_id=algorithm)[:, : shape.m]

        return make

    return [
        Contender(
            family="semi_structured",
            kernel="cusparselt",
            pattern="n_m",
            granularity=4,
            distribution="balanced",
            dtype_name=setting.dtype_name,
            layout="row_to_feature",
            sparsity=0.5,
            operand_bytes=packed.nbytes + setting.activation_bytes,
            weight_bytes=packed.nbytes,
            make=maker(algorithm),
            expected=expected,
        )
        for algorithm in sorted(algorithms)
    ]
