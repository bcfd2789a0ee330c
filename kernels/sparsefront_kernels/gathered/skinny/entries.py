"""The kernel for few rows of X, as the registry knows it: one entry for each layout."""

from torch import Tensor

from sparsefront_kernels.common.device_limits import hopper_refusal
from sparsefront_kernels.format import SparseFormat
from sparsefront_kernels.gathered.layout_entry import layout_entry
from sparsefront_kernels.gathered.skinny.op import gathered_skinny_spmm, rows_refusal
from sparsefront_kernels.gathered.skinny.spmm import LIBRARY
from sparsefront_kernels.gathered.skinny.tables import SkinnyTables, dtype_refusal, inputs_refusal, skinny_tables
from sparsefront_kernels.gathered.skinny.tuning import KERNEL, LAUNCHES
from sparsefront_kernels.problem import LAYOUTS, X_FEATURE_MAJOR, Y_FEATURE_MAJOR, Problem


def _product(
    x: Tensor,
    tables: SkinnyTables,
    bias: Tensor | None = None,
    *,
    activation: str = "none",
    residual: Tensor | None = None,
    layout: str,
) -> Tensor:
    """x and y in the layout's order."""
    return gathered_skinny_spmm(
        x,
        tables.panels,
        tables.lists,
        tables.strips,
        tables.outputs,
        bias,
        residual,
        tables.chunks_of_each,
        tables.most_chunks,
        tables.in_order,
        tables.n,
        tables.k,
        activation,
        layout in X_FEATURE_MAJOR,
        layout in Y_FEATURE_MAJOR,
    )


def _limits(stored: SparseFormat, problem: Problem) -> str | None:
    """Why the kernel cannot serve: it is for few rows, and compiled for compute capability 9.0 alone."""
    reason = rows_refusal(problem.m) or dtype_refusal(problem.dtype) or inputs_refusal(problem.k)
    return reason or hopper_refusal(problem, LIBRARY)


ENTRIES = tuple(
    layout_entry(
        KERNEL,
        layout,
        product=_product,
        prepare=skinny_tables,
        limits=_limits,
        tunable=LAUNCHES[layout in X_FEATURE_MAJOR],
    )
    for layout in LAYOUTS
)
