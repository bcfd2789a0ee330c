"""2:4 on sparse tensor cores through cuSPARSELt (1:2 in TF32); its own search chooses the algorithm."""

from dataclasses import asdict

import torch

from sparsefront_kernels.bench.copies import numbered
from sparsefront_kernels.bench.provider import Provider
from sparsefront_kernels.bench.setting import Setting
from sparsefront_kernels.bench.weights import random_groups
from sparsefront_kernels.semi_structured.cusparselt import DEFAULT, Algorithm, padded_rows, searched


def unsupported_reason(dtype_name: str, sparsity: float) -> str | None:
    """Why it does not run, whatever the shape, or None."""
    if sparsity != 0.5:
        return f"2:4 and 1:2 are a sparsity of 0.5, not {sparsity:g}"
    return "sparse tensor cores multiply float32 as TF32" if dtype_name == "fp32" else None


def providers(setting: Setting) -> list[Provider]:
    """With the algorithm of its search and with its default one.

    X is padded beforehand to an M that it takes; the padding is not in its time.

    Raises:
        RuntimeError: this PyTorch has no cuSPARSELt, or it does not support the shape.
    """
    shape = setting.shape
    rows = padded_rows(shape.m)
    group_m = 2 if setting.dtype_name == "tf32" else 4
    weight = setting.weight() * random_groups(shape.n, shape.k, group_m // 2, group_m, setting.device)
    reference = setting.reference(weight)
    packed = torch._cslt_compress(weight)
    copies = numbered(packed)
    algorithms = {DEFAULT, searched(packed, setting.x_in("row_to_feature", 0, rows=rows).t())}

    def maker(algorithm: Algorithm):
        def make(copy: int):
            x, w = setting.x_in("row_to_feature", copy, rows=rows), copies(copy)
            return lambda: torch._cslt_sparse_mm(w, x.t(), **asdict(algorithm))[:, : shape.m]

        return make

    return [
        Provider(
            family="semi_structured",
            kernel="cusparselt",
            pattern="n_m",
            granularity=group_m,
            distribution="balanced",
            dtype_name=setting.dtype_name,
            layout="row_to_feature",
            sparsity=0.5,
            operand_bytes=packed.nbytes + setting.activation_bytes,
            weight_bytes=packed.nbytes,
            make=maker(algorithm),
            reference=reference,
        )
        for algorithm in sorted(algorithms)
    ]
