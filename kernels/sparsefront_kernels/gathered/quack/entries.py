"""QuACK as an entry of the registry: feature-major, the only layout that it gathers from."""

from torch import Tensor

from sparsefront_kernels.format import SparseFormat
from sparsefront_kernels.gathered.layout_entry import entry_name
from sparsefront_kernels.gathered.quack.library import refusal
from sparsefront_kernels.gathered.quack.op import gathered_quack_spmm
from sparsefront_kernels.gathered.quack.tables import QuackTables, quack_tables, tile_refusal
from sparsefront_kernels.gathered.quack.tuning import KERNEL, LAUNCHES
from sparsefront_kernels.kernel_entry import KernelEntry
from sparsefront_kernels.problem import Problem

LAYOUT = "feature_major"


def _product(x: Tensor, tables: QuackTables, bias: Tensor | None = None) -> Tensor:
    """X [K, M] → Y [N, M]; the bias is added by PyTorch, after the product was rounded."""
    y = gathered_quack_spmm(
        x,
        tables.panels,
        tables.kept,
        tables.offsets,
        tables.order,
        tables.rows,
        tables.n,
        tables.k,
        tables.consecutive,
    )
    return y if bias is None else y + bias.to(y.dtype)[:, None]


def _limits(stored: SparseFormat, problem: Problem) -> str | None:
    return tile_refusal(stored.tile) or refusal(problem)


ENTRIES = (
    KernelEntry(
        name=entry_name(KERNEL, LAYOUT),
        family="gathered",
        run=_product,
        prepare=quack_tables,
        limits=_limits,
        requires_cuda=True,
        layout=LAYOUT,
        tunable=LAUNCHES,
    ),
)
