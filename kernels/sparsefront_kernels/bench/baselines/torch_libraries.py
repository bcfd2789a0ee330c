"""PyTorch's libraries: dense products (cuBLAS), 2:4 (cuSPARSELt), and unstructured CSR (cuSPARSE).

cuBLAS runs in every layout of X, W and Y that saves a copy. cuSPARSELt uses sparse tensor cores for 2:4 (1:2 in TF32), and
selects its algorithm by its own search.
"""

from collections.abc import Iterable
from dataclasses import asdict

import torch

from sparsefront_kernels.bench.families import random_groups
from sparsefront_kernels.bench.problems import Setting
from sparsefront_kernels.bench.provider import Provider, numbered, provider_of
from sparsefront_kernels.semi_structured.cusparselt import DEFAULT, Algorithm, padded_rows, searched

# name: (layout of X and Y, the product). W is [N, K], or [K, N] where its name ends in "_wt".
DENSE_PRODUCTS = {
    "cublas": ("row_major", lambda x, w: x @ w.t()),
    "cublas_wt": ("row_major", lambda x, w: x @ w),
    "cublas_feature_major": ("feature_major", lambda x, w: w @ x),
    "cublas_feature_major_wt": ("feature_major", lambda x, w: w.t() @ x),
    "cublas_row_to_feature": ("row_to_feature", lambda x, w: w @ x.t()),
    "cublas_row_to_feature_wt": ("row_to_feature", lambda x, w: w.t() @ x.t()),
    "cublas_feature_to_row": ("feature_to_row", lambda x, w: x.t() @ w.t()),
    "cublas_feature_to_row_wt": ("feature_to_row", lambda x, w: x.t() @ w),
}
ALWAYS = ("row_major", "feature_major")  # the dense time is that of the faster one, whatever layout is requested


def dense_providers(setting: Setting, layouts: Iterable[str] = ()) -> list[Provider]:
    """Dense products with sparsity 0; the fastest is `dense` in a result row.

    Args:
        layouts: additional ones besides `ALWAYS`.
    """
    weight = setting.weight()
    reference = setting.reference(weight)
    as_stored, transposed = numbered(weight), numbered(weight.t().contiguous())

    def provider(name: str) -> Provider:
        layout, product = DENSE_PRODUCTS[name]

        def make(copy: int):
            x, w = setting.x_in(layout, copy), (transposed if name.endswith("_wt") else as_stored)(copy)
            return lambda: product(x, w)

        return provider_of(
            setting,
            family="dense",
            kernel=name,
            pattern="dense",
            granularity=0,
            distribution="",
            layout=layout,
            sparsity=0.0,
            weight_bytes=weight.nbytes,
            make=make,
            reference=reference,
        )

    return [provider(name) for name, (layout, _) in DENSE_PRODUCTS.items() if layout in {*ALWAYS, *layouts}]


def cusparselt_unsupported_reason(dtype_name: str, sparsity: float) -> str | None:
    """Why it is unsupported for any shape, or None."""
    if sparsity != 0.5:
        return f"2:4 and 1:2 are a sparsity of 0.5, not {sparsity:g}"
    return "sparse tensor cores multiply float32 as TF32" if dtype_name == "fp32" else None


def cusparselt_providers(setting: Setting) -> list[Provider]:
    """With the algorithm from its search and with the default one.

    X is padded beforehand to a supported M; padding is not timed.

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
        provider_of(
            setting,
            family="semi_structured",
            kernel="cusparselt",
            pattern="n_m",
            granularity=group_m,
            distribution="balanced",
            layout="row_to_feature",
            sparsity=0.5,
            weight_bytes=packed.nbytes,
            make=maker(algorithm),
            reference=reference,
        )
        for algorithm in sorted(algorithms)
    ]


def cusparse_csr_unsupported_reason(dtype_name: str, sparsity: float) -> str | None:
    """Why it is unsupported for any shape, or None."""
    return "cuSPARSE multiplies float32 exactly" if dtype_name == "tf32" else None


def cusparse_csr_providers(setting: Setting) -> list[Provider]:
    """W · X with feature-major X, keeping each weight with equal probability."""
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
        provider_of(
            setting,
            family="csr",
            kernel="cusparse_csr",
            pattern="element_wise",
            granularity=1,
            distribution="free",
            layout="feature_major",
            sparsity=1 - stored.values().numel() / (shape.n * shape.k),
            weight_bytes=weight_bytes,
            make=make,
            reference=reference,
        )
    ]
