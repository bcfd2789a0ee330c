"""The dense product through cuBLAS, in every layout of X, W and Y that saves no copy."""

from torch import Tensor

from sparsefront_kernels.bench.contender import Contender
from sparsefront_kernels.bench.setting import Setting

# name: (layout of X and Y, the product). W is [N, K], or [K, N] where its name ends in "_wt".
PRODUCTS = {
    "cublas": ("row_major", lambda x, w: x @ w.t()),
    "cublas_wt": ("row_major", lambda x, w: x @ w),
    "cublas_feature_major": ("feature_major", lambda x, w: w @ x),
    "cublas_feature_major_wt": ("feature_major", lambda x, w: w.t() @ x),
}


def contenders(setting: Setting) -> list[Contender]:
    """Dense weight, sparsity 0; the fastest of these is what `dense` means in a row."""
    weight = setting.weight()
    expected = setting.expected(weight)
    return [_contender(setting, name, weight, expected) for name in PRODUCTS]


def _contender(setting: Setting, name: str, weight: Tensor, expected: Tensor) -> Contender:
    layout, product = PRODUCTS[name]

    def make():
        x, w = setting.x_in(layout), weight.t().contiguous() if name.endswith("_wt") else weight.clone()
        return lambda: product(x, w)

    return Contender(
        family="dense",
        kernel=name,
        pattern="dense",
        granularity=0,
        distribution="",
        layout=layout,
        sparsity=0.0,
        operand_bytes=weight.nbytes + setting.activation_bytes,
        weight_bytes=weight.nbytes,
        make=make,
        as_rows=lambda y: y if layout == "row_major" else y.t(),
        expected=expected,
    )
