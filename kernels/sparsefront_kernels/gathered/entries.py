"""The kernels of the gathered family."""

from torch import Tensor

from sparsefront_kernels.common.device_limits import triton_refusal
from sparsefront_kernels.gathered.op import gathered_spmm
from sparsefront_kernels.gathered.reference import gathered_spmm_reference
from sparsefront_kernels.gathered.tables import GatheredTables, gathered_tables
from sparsefront_kernels.kernel_entry import KernelEntry


def _row_major(x: Tensor, tables: GatheredTables, bias: Tensor | None = None) -> Tensor:
    """x [M, K] → [M, N]."""
    return _product(x, tables, bias, feature_major=False)


def _feature_major(x: Tensor, tables: GatheredTables, bias: Tensor | None = None) -> Tensor:
    """x [K, M] → [N, M]."""
    return _product(x, tables, bias, feature_major=True)


def _product(x: Tensor, tables: GatheredTables, bias: Tensor | None, *, feature_major: bool) -> Tensor:
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


ENTRIES = (
    KernelEntry(name="gathered_reference", family="gathered", run=gathered_spmm_reference, is_reference=True),
    KernelEntry(
        name="gathered_triton",
        family="gathered",
        run=_row_major,
        prepare=gathered_tables,
        limits=triton_refusal,
        requires_cuda=True,
    ),
    KernelEntry(
        name="gathered_triton_feature_major",
        family="gathered",
        run=_feature_major,
        prepare=gathered_tables,
        limits=triton_refusal,
        requires_cuda=True,
        layout="feature_major",
    ),
)
