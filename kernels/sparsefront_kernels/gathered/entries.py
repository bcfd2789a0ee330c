"""The kernels of the gathered family."""

from functools import partial

import torch
from torch import Tensor

from sparsefront_kernels import cuda_library
from sparsefront_kernels.common.device_limits import cuda_refusal, triton_refusal
from sparsefront_kernels.format import SparseFormat
from sparsefront_kernels.gathered.cuda_spmm import LIBRARY
from sparsefront_kernels.gathered.op import gathered_spmm
from sparsefront_kernels.gathered.pairs import PairTables, pair_tables, tile_refusal
from sparsefront_kernels.gathered.pairs_op import gathered_pairs_spmm
from sparsefront_kernels.gathered.reference import gathered_spmm_reference
from sparsefront_kernels.gathered.skinny_entries import ENTRIES as SKINNY
from sparsefront_kernels.gathered.tables import GatheredTables, gathered_tables
from sparsefront_kernels.kernel_entry import KernelEntry
from sparsefront_kernels.problem import Problem


def _product(x: Tensor, tables: GatheredTables, bias: Tensor | None = None, *, feature_major: bool) -> Tensor:
    """x [M, K] → [M, N], or x [K, M] → [N, M] where feature_major."""
    return gathered_spmm(
        x,
        tables.values,
        tables.kept_inputs,
        tables.tile_offsets,
        tables.order,
        tables.outputs,
        bias,
        tables.n,
        tables.k,
        tables.consecutive,
        feature_major,
    )


def _pairs_product(x: Tensor, tables: PairTables, bias: Tensor | None = None, *, feature_major: bool) -> Tensor:
    """As `_product`; the kernel is feature-major, so that otherwise X and Y are transposed on the way."""
    return gathered_pairs_spmm(
        x,
        tables.panels,
        tables.steps,
        tables.pairs,
        tables.outputs,
        tables.steps_of_each,
        bias,
        tables.n,
        tables.k,
        feature_major,
    )


def _pairs_limits(stored: SparseFormat, problem: Problem) -> str | None:
    """Why the Hopper kernel cannot serve: its instructions exist on compute capability 9.0 alone."""
    if problem.dtype not in (torch.float16, torch.bfloat16):
        return f"takes float16 or bfloat16, not {problem.dtype}"
    if reason := tile_refusal(stored.tile) or cuda_refusal(problem, minimum_capability=(9, 0)):
        return reason
    if (capability := torch.cuda.get_device_capability(problem.device)) != (9, 0):
        return "is written for compute capability 9.0, this GPU has {}.{}".format(*capability)
    return cuda_library.refusal(LIBRARY)


ENTRIES = (
    KernelEntry(name="gathered_reference", family="gathered", run=gathered_spmm_reference, is_reference=True),
    KernelEntry(
        name="gathered_triton",
        family="gathered",
        run=partial(_product, feature_major=False),
        prepare=gathered_tables,
        limits=triton_refusal,
        requires_cuda=True,
    ),
    KernelEntry(
        name="gathered_triton_feature_major",
        family="gathered",
        run=partial(_product, feature_major=True),
        prepare=gathered_tables,
        limits=triton_refusal,
        requires_cuda=True,
        layout="feature_major",
    ),
    KernelEntry(
        name="gathered_cuda",
        family="gathered",
        run=partial(_pairs_product, feature_major=False),
        prepare=pair_tables,
        limits=_pairs_limits,
        requires_cuda=True,
    ),
    KernelEntry(
        name="gathered_cuda_feature_major",
        family="gathered",
        run=partial(_pairs_product, feature_major=True),
        prepare=pair_tables,
        limits=_pairs_limits,
        requires_cuda=True,
        layout="feature_major",
    ),
    *SKINNY,
)
