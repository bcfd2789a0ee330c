"""The float32 kernel on Hopper's CUDA cores as entries of the registry, one for each layout."""

import torch
from torch import Tensor

from sparsefront_kernels.common.device_limits import hopper_refusal
from sparsefront_kernels.format import SparseFormat
from sparsefront_kernels.gathered.cuda_cores.op import gathered_fp32_spmm
from sparsefront_kernels.gathered.cuda_cores.spmm import LIBRARY
from sparsefront_kernels.gathered.cuda_cores.tables import Fp32Tables, fp32_tables, tile_refusal
from sparsefront_kernels.gathered.cuda_cores.tuning import KERNEL, LAUNCHES
from sparsefront_kernels.gathered.layout_entry import layout_entry
from sparsefront_kernels.problem import LAYOUTS, X_FEATURE_MAJOR, Y_FEATURE_MAJOR, Problem


def _product(
    x: Tensor,
    tables: Fp32Tables,
    bias: Tensor | None = None,
    *,
    layout: str,
    activation: str = "none",
    residual: Tensor | None = None,
) -> Tensor:
    """activation(X · Wᵀ + bias) + residual; the kernel is feature-major, so that otherwise X and Y are transposed."""
    return gathered_fp32_spmm(
        x,
        tables.panels,
        tables.kept,
        tables.tiles,
        tables.outputs,
        bias,
        residual,
        tables.kept_of_each,
        tables.n,
        tables.k,
        activation,
        layout in X_FEATURE_MAJOR,
        layout in Y_FEATURE_MAJOR,
    )


def _limits(stored: SparseFormat, problem: Problem) -> str | None:
    """Why the kernel cannot serve: it is built for compute capability 9.0 alone."""
    if problem.dtype != torch.float32:
        return f"takes float32, not {problem.dtype}"
    return tile_refusal(stored.tile) or hopper_refusal(problem, LIBRARY)


ENTRIES = tuple(
    layout_entry(KERNEL, layout, product=_product, prepare=fp32_tables, limits=_limits, tunable=LAUNCHES)
    for layout in LAYOUTS
)
