"""The float32 kernel of narrow tiles as an entry of the registry."""

import torch
from torch import Tensor

from sparsefront_kernels.common.device_support import hopper_unsupported_reason
from sparsefront_kernels.format import SparseFormat
from sparsefront_kernels.gathered.indexed.op import gathered_indexed
from sparsefront_kernels.gathered.indexed.packed_weight import (
    IndexedPackedWeight,
    pack_for_indexed,
    tile_unsupported_reason,
)
from sparsefront_kernels.gathered.indexed.spmm import LIBRARY
from sparsefront_kernels.gathered.indexed.tuning import KERNEL, LAUNCHES
from sparsefront_kernels.kernel_entry import KernelEntry
from sparsefront_kernels.problem import LAYOUTS, X_FEATURE_MAJOR, Y_FEATURE_MAJOR, Problem


def _product(
    x: Tensor,
    packed: IndexedPackedWeight,
    bias: Tensor | None = None,
    *,
    layout: str,
    activation: str = "none",
    residual: Tensor | None = None,
) -> Tensor:
    """activation(X · Wᵀ + bias) + residual; the kernel is feature-major, so that otherwise X and Y are transposed."""
    return gathered_indexed(
        x,
        packed.panels,
        packed.kept,
        packed.starts,
        packed.places,
        packed.tiles,
        packed.outputs,
        bias,
        residual,
        packed.most_steps,
        packed.n,
        packed.k,
        activation,
        layout in X_FEATURE_MAJOR,
        layout in Y_FEATURE_MAJOR,
    )


def _unsupported(stored: SparseFormat, problem: Problem) -> str | None:
    """Why the kernel is unsupported: it is built for compute capability 9.0 alone."""
    if problem.dtype != torch.float32:
        return f"takes float32, not {problem.dtype}"
    return tile_unsupported_reason(stored.tile) or hopper_unsupported_reason(problem, LIBRARY)


ENTRY = KernelEntry(
    name=KERNEL,
    family="gathered",
    product=_product,
    unsupported=_unsupported,
    pack=pack_for_indexed,
    requires_cuda=True,
    layouts=LAYOUTS,
    fuses_epilogue=True,
    tunable=LAUNCHES,
)
