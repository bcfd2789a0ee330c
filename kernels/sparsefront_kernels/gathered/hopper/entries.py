"""The 16-bit kernel on Hopper's tensor cores as entries of the registry, one for each layout."""

import torch
from torch import Tensor

from sparsefront_kernels.common.device_limits import hopper_refusal
from sparsefront_kernels.format import SparseFormat
from sparsefront_kernels.gathered.hopper import narrow, wide
from sparsefront_kernels.gathered.hopper.op import gathered_pairs_spmm
from sparsefront_kernels.gathered.hopper.tables import PairTables, pair_tables, tile_refusal
from sparsefront_kernels.gathered.hopper.tuning import KERNEL, LAUNCHES
from sparsefront_kernels.gathered.layout_entry import layout_entry
from sparsefront_kernels.problem import LAYOUTS, X_FEATURE_MAJOR, Y_FEATURE_MAJOR, Problem


def _product(
    x: Tensor,
    tables: PairTables,
    bias: Tensor | None = None,
    *,
    layout: str,
    activation: str = "none",
    residual: Tensor | None = None,
) -> Tensor:
    """As `triton_product`; the kernel reads X feature-major, so that otherwise X is transposed on the way."""
    return gathered_pairs_spmm(
        x,
        tables.panels,
        tables.steps,
        tables.pairs,
        tables.outputs,
        bias,
        residual,
        tables.compact,
        tables.place,
        tables.steps_of_each,
        tables.whole_runs,
        tables.lengths,
        tables.n,
        tables.k,
        activation,
        layout in X_FEATURE_MAJOR,
        layout in Y_FEATURE_MAJOR,
    )


def _limits(stored: SparseFormat, problem: Problem) -> str | None:
    """Why the Hopper kernel cannot serve: its instructions exist on compute capability 9.0 alone."""
    if problem.dtype not in (torch.float16, torch.bfloat16):
        return f"takes float16 or bfloat16, not {problem.dtype}"
    return tile_refusal(stored.tile) or hopper_refusal(problem, narrow.LIBRARY) or hopper_refusal(problem, wide.LIBRARY)


ENTRIES = tuple(
    layout_entry(KERNEL, layout, product=_product, prepare=pair_tables, limits=_limits, tunable=LAUNCHES)
    for layout in LAYOUTS
)
