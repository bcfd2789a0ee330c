"""The registry entry of a GPU kernel in one layout."""

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor

from sparsefront_kernels.convolution import Convolving
from sparsefront_kernels.format import SparseFormat
from sparsefront_kernels.kernel_entry import KernelEntry
from sparsefront_kernels.problem import Problem
from sparsefront_kernels.tuning.tunable import Tunable


def entry_name(kernel: str, layout: str) -> str:
    """The kernel's own name where row-major, else with the layout behind it."""
    return kernel if layout == "row_major" else f"{kernel}_{layout}"


def layout_entry(
    kernel: str,
    layout: str,
    *,
    product: Callable[..., Tensor],
    pack: Callable[[SparseFormat], Any],
    unsupported: Callable[[SparseFormat, Problem], str | None],
    tunable: Tunable | None = None,
    dtype_name: str | None = None,
    family: str = "gathered",
    convolving: Convolving | None = None,
) -> KernelEntry:
    """The entry of a kernel that fuses an epilogue.

    Args:
        product: the entry's `run`, which also takes the layout as a keyword.
        pack, unsupported, tunable, dtype_name, family, convolving: as in `KernelEntry`.
    """
    return KernelEntry(
        name=entry_name(kernel, layout),
        family=family,
        run=partial(product, layout=layout),
        pack=pack,
        unsupported=unsupported,
        requires_cuda=True,
        layout=layout,
        dtype_name=dtype_name,
        fuses_epilogue=True,
        tunable=tunable,
        convolving=convolving,
    )
