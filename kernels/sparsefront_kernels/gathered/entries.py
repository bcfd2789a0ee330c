"""The kernels of the gathered family."""

from functools import partial

import torch
from torch import Tensor

from sparsefront_kernels.common.device_limits import hopper_refusal, triton_refusal
from sparsefront_kernels.format import SparseFormat
from sparsefront_kernels.gathered.cuda_spmm import LIBRARY
from sparsefront_kernels.gathered.fp32_entries import FP32_ENTRIES
from sparsefront_kernels.gathered.pairs import PairTables, pair_tables, tile_refusal
from sparsefront_kernels.gathered.pairs_op import gathered_pairs_spmm
from sparsefront_kernels.gathered.reference import gathered_spmm_reference
from sparsefront_kernels.gathered.skinny_entries import ENTRIES as SKINNY
from sparsefront_kernels.gathered.tables import gathered_tables
from sparsefront_kernels.gathered.tf32_entries import TF32_ENTRIES
from sparsefront_kernels.gathered.triton_product import triton_product
from sparsefront_kernels.gathered.tuning import PAIR_TUNABLE
from sparsefront_kernels.kernel_entry import KernelEntry
from sparsefront_kernels.problem import LAYOUTS, X_FEATURE_MAJOR, Y_FEATURE_MAJOR, Problem


def _pairs_product(
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
        tables.steps_of_each,
        tables.whole_runs,
        tables.n,
        tables.k,
        activation,
        layout in X_FEATURE_MAJOR,
        layout in Y_FEATURE_MAJOR,
    )


def _pairs_limits(stored: SparseFormat, problem: Problem) -> str | None:
    """Why the Hopper kernel cannot serve: its instructions exist on compute capability 9.0 alone."""
    if problem.dtype not in (torch.float16, torch.bfloat16):
        return f"takes float16 or bfloat16, not {problem.dtype}"
    return tile_refusal(stored.tile) or hopper_refusal(problem, LIBRARY)


def _name(kernel: str, layout: str) -> str:
    return kernel if layout == "row_major" else f"{kernel}_{layout}"


ENTRIES = (
    KernelEntry(
        name="gathered_reference",
        family="gathered",
        run=gathered_spmm_reference,
        is_reference=True,
        fuses_epilogue=True,
    ),
    *(
        KernelEntry(
            name=_name("gathered_triton", layout),
            family="gathered",
            run=partial(triton_product, layout=layout),
            prepare=gathered_tables,
            limits=triton_refusal,
            requires_cuda=True,
            layout=layout,
            fuses_epilogue=True,
        )
        for layout in LAYOUTS
    ),
    *(
        KernelEntry(
            name=_name("gathered_cuda", layout),
            family="gathered",
            run=partial(_pairs_product, layout=layout),
            prepare=pair_tables,
            limits=_pairs_limits,
            requires_cuda=True,
            layout=layout,
            fuses_epilogue=True,
            tunable=PAIR_TUNABLE,
        )
        for layout in LAYOUTS
    ),
    *FP32_ENTRIES,
    *SKINNY,
    *TF32_ENTRIES,
)
