"""Unstructured CSR through cuSPARSE."""

import torch

from sparsefront_kernels.bench.copies import numbered
from sparsefront_kernels.bench.provider import Provider
from sparsefront_kernels.bench.setting import Setting


def unsupported_reason(dtype_name: str, sparsity: float) -> str | None:
    """Why it does not run, whatever the shape, or None."""
    return "cuSPARSE multiplies float32 exactly" if dtype_name == "tf32" else None


def providers(setting: Setting) -> list[Provider]:
    """One: W · X with X feature-major, each weight kept with the same chance."""
    shape = setting.shape
    keep = torch.rand(shape.n, shape.k, device=setting.device) >= setting.sparsity
    weight = setting.weight() * keep
    reference = setting.reference(weight)
    stored = weight.to_sparse_csr()
    stored = torch.sparse_csr_tensor(
        stored.crow_indices().int(), stored.col_indices().int(), stored.values(), weight.shape
    )
    weight_bytes = stored.values().nbytes + stored.col_indices().nbytes + stored.crow_indices().nbytes

    copies = numbered(stored)

    def make(copy: int):
        x, w = setting.x_in("feature_major", copy), copies(copy)
        return lambda: w @ x

    return [
        Provider(
            family="csr",
            kernel="cusparse_csr",
            pattern="element_wise",
            granularity=1,
            distribution="free",
            dtype_name=setting.dtype_name,
            layout="feature_major",
            sparsity=1 - stored.values().numel() / (shape.n * shape.k),
            operand_bytes=weight_bytes + setting.activation_bytes,
            weight_bytes=weight_bytes,
            make=make,
            reference=reference,
        )
    ]
