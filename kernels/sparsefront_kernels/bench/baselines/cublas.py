"""The dense product through cuBLAS, in every layout of X, W and Y that saves no copy."""

from collections.abc import Iterable

from sparsefront_kernels.bench.copies import numbered
from sparsefront_kernels.bench.provider import Provider
from sparsefront_kernels.bench.setting import Setting

# name: (layout of X and Y, the product). W is [N, K], or [K, N] where its name ends in "_wt".
PRODUCTS = {
    "cublas": ("row_major", lambda x, w: x @ w.t()),
    "cublas_wt": ("row_major", lambda x, w: x @ w),
    "cublas_feature_major": ("feature_major", lambda x, w: w @ x),
    "cublas_feature_major_wt": ("feature_major", lambda x, w: w.t() @ x),
    "cublas_row_to_feature": ("row_to_feature", lambda x, w: w @ x.t()),
    "cublas_row_to_feature_wt": ("row_to_feature", lambda x, w: w.t() @ x.t()),
    "cublas_feature_to_row": ("feature_to_row", lambda x, w: x.t() @ w.t()),
    "cublas_feature_to_row_wt": ("feature_to_row", lambda x, w: x.t() @ w),
}
ALWAYS = ("row_major", "feature_major")  # dense time is that of the fastest of these, whatever is asked for


def providers(setting: Setting, layouts: Iterable[str] = ()) -> list[Provider]:
    """Dense weight, sparsity 0; the fastest of these is what `dense` means in a row.

    Args:
        layouts: those wanted besides `ALWAYS`.
    """
    weight = setting.weight()
    reference = setting.reference(weight)
    as_stored, transposed = numbered(weight), numbered(weight.t().contiguous())

    def provider(name: str) -> Provider:
        layout, product = PRODUCTS[name]

        def make(copy: int):
            x, w = setting.x_in(layout, copy), (transposed if name.endswith("_wt") else as_stored)(copy)
            return lambda: product(x, w)

        return Provider(
            family="dense",
            kernel=name,
            pattern="dense",
            granularity=0,
            distribution="",
            dtype_name=setting.dtype_name,
            layout=layout,
            sparsity=0.0,
            operand_bytes=weight.nbytes + setting.activation_bytes,
            weight_bytes=weight.nbytes,
            make=make,
            reference=reference,
        )

    return [provider(name) for name, (layout, _) in PRODUCTS.items() if layout in {*ALWAYS, *layouts}]
