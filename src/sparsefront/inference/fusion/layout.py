"""Where the elements of an activation lie: logically always [..., features].

A feature-major activation has its rows along memory: [B, T, d] with strides (T, 1, B·T) is a view of [d, B·T]. Modules hand
each other such views, so that no signature changes, and every operator that reads by strides stays right.
"""

from sparsefront_kernels.pointwise import contiguous_transpose
from sparsefront_kernels.problem import LAYOUTS, X_FEATURE_MAJOR, Y_FEATURE_MAJOR
from torch import Tensor


def in_layout(matrix: Tensor, *, feature_major: bool) -> Tensor:
    """[M, d] as a view of what lies as asked for: itself, or a copy."""
    if matrix.stride(0 if feature_major else 1) == 1 or matrix.shape[1 if feature_major else 0] == 1:
        return matrix
    if feature_major:
        return contiguous_transpose(matrix).t()
    return contiguous_transpose(matrix.t())


def activation_in_layout(x: Tensor, *, feature_major: bool) -> Tensor:
    """[..., d] as `in_layout` has it."""
    return in_layout(x.reshape(-1, x.shape[-1]), feature_major=feature_major).view(x.shape)


def layout_name(*, x_feature_major: bool, y_feature_major: bool) -> str:
    """The kernels' word for a pair of layouts."""
    return next(
        layout
        for layout in LAYOUTS
        if (layout in X_FEATURE_MAJOR, layout in Y_FEATURE_MAJOR) == (x_feature_major, y_feature_major)
    )
