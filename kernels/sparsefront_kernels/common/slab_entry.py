"""The registry's entry of a kernel of which every lane owns rows of X."""

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor

from sparsefront_kernels.common.device_support import hopper_unsupported_reason
from sparsefront_kernels.common.lane_chunks import DTYPES
from sparsefront_kernels.common.slab_launch import rows_unsupported_reason, tuned_slabs
from sparsefront_kernels.common.slab_lists import SlabWeight
from sparsefront_kernels.common.slab_op import slab_op
from sparsefront_kernels.format import SparseFormat
from sparsefront_kernels.kernel_entry import KernelEntry
from sparsefront_kernels.problem import Problem


def slab_entry(family: str, *, kernel: str, version: int, pack: Callable[[Any], SlabWeight]) -> KernelEntry:
    """Takes row-major and feature-major; a row-major Y is the transpose of what the kernel writes, as a view.

    Args:
        kernel: its name, and that of its op and its library.
        version: raised when a change of the kernel makes stored launches useless.
        pack: format → the weight laid out for it.
    """
    launches = tuned_slabs(kernel, version)
    return KernelEntry(
        name=kernel,
        family=family,
        product=partial(_product, slab_op(launches)),
        unsupported=partial(_unsupported, kernel),
        pack=pack,
        requires_cuda=True,
        layouts=("row_major", "feature_major"),
        tunable=launches,  # type: ignore[arg-type]  # frozen attributes serve a protocol that only reads them
    )


def _product(
    op: Callable[..., Tensor], x: Tensor, packed: SlabWeight, bias: Tensor | None = None, *, layout: str
) -> Tensor:
    """x and y in the layout's order."""
    parts, feature_major = packed.lists, layout == "feature_major"
    y = op(x, parts.values, parts.places, parts.pointers, parts.order, bias, packed.n, packed.k, feature_major)
    return y if feature_major else y.t()


def _unsupported(library: str, stored: SparseFormat, problem: Problem) -> str | None:
    """It takes any weight of its family, and is compiled for compute capability 9.0 alone."""
    if problem.dtype not in DTYPES:
        return f"takes float16, bfloat16 or float32, not {problem.dtype}"
    reason = rows_unsupported_reason(problem.m, problem.dtype.itemsize)
    return reason or hopper_unsupported_reason(problem, library)
