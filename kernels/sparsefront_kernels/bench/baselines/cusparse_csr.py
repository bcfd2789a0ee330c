"""Unstructured CSR through cuSPARSE."""

import torch

from sparsefront_kernels.bench.contender import Contender
from sparsefront_kernels.bench.setting import Setting


def contenders(setting: Setting) -> list[Contender]:
    """One: W · X with X feature-major, each weight kept with the same chance."""
    shape = setting.shape
    keep = torch.rand(shape.n, shape.k, device=setting.device) >= setting.sparsity
    weight = setting.weight() * keep
    expected = setting.expected(weight)
    stored = weight.to_sparse_csr()
    stored = torch.sparse_csr_tensor(
        stored.crow_indices().int(), stored.col_indices().int(), stored.values(), weight.shape
    )
    weight_bytes = stored.values().nbytes + stored.col_indices().nbytes + stored.crow_indices().nbytes

    def make():
        x, w = setting.x_in("feature_major"), stored.clone()
        return lambda: w @ x

    return [
        Contender(
            family="csr",
            kernel="cusparse_csr",
            pattern="element_wise",
            granularity=1,
            distribution="free",
            layout="feature_major",
            sparsity=1 - stored.values().numel() / (shape.n * shape.k),
            operand_bytes=weight_bytes + setting.activation_bytes,
            weight_bytes=weight_bytes,
            make=make,
            as_rows=lambda y: y.t(),
            expected=expected,
        )
    ]
