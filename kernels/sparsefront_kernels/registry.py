"""Every kernel by name, and which of them support a weight and a problem."""

import copyreg
from collections.abc import Callable
from dataclasses import dataclass

from sparsefront_kernels import (
    blocked,
    blocked_2_4,
    csr,
    dense,
    ell,
    gathered,
    gathered_2_4,
    gathered_overlay,
    n_m,
    semi_structured,
)
from sparsefront_kernels.format import SparseFormat
from sparsefront_kernels.kernel_entry import KernelEntry
from sparsefront_kernels.problem import Problem, kernel_and_layout

# A family is a package with FORMAT, its storage format, and ENTRIES, its kernels, the reference first.
_FAMILIES = (dense, gathered, gathered_overlay, gathered_2_4, blocked, blocked_2_4, n_m, semi_structured, ell, csr)

FORMATS: dict[str, type[SparseFormat]] = {module.FORMAT.family: module.FORMAT for module in _FAMILIES}

_ENTRIES: dict[str, KernelEntry] = {entry.name: entry for module in _FAMILIES for entry in module.ENTRIES}


@dataclass(frozen=True)
class Found:
    """What `find` returns: usable entries in the registry's order, and kernel -> why it is unsupported for every other one."""

    usable: list[KernelEntry]
    unsupported: dict[str, str]


def families() -> tuple[str, ...]:
    """Names of the storage families."""
    return tuple(FORMATS)


def entries() -> tuple[KernelEntry, ...]:
    """All kernels, family by family, each family's reference first."""
    return tuple(_ENTRIES.values())


def names() -> tuple[str, ...]:
    """Names of all kernels."""
    return tuple(_ENTRIES)


def entry(name: str) -> KernelEntry:
    """The kernel of that name.

    Raises:
        ValueError: no such kernel; the message lists those there are.
    """
    if name not in _ENTRIES:
        raise ValueError(f"no kernel is called {name!r}; there are {', '.join(_ENTRIES)}")
    return _ENTRIES[name]


def labeled(label: str) -> tuple[KernelEntry, str | None]:
    """The kernel that results, a plan or a configuration name, and its layout; None where the name says none.

    In what was recorded, a name without a layout is of the kernel's first one: of row-major X and Y.

    Raises:
        ValueError: no such kernel, or none that takes this layout.
    """
    name, layout = kernel_and_layout(label)
    kernel = entry(name)
    if layout not in (None, *kernel.layouts):
        raise ValueError(f"no kernel is called {label!r}; {name} takes {', '.join(kernel.layouts)}")
    return kernel, layout


def reference(family: str) -> KernelEntry:
    """The plain PyTorch kernel of a family.

    Raises:
        ValueError: no such family; the message lists those there are.
    """
    for candidate in entries():
        if candidate.family == family and candidate.is_reference:
            return candidate
    raise ValueError(f"no storage family is called {family!r}; there are {', '.join(FORMATS)}")


def find(stored: SparseFormat, problem: Problem) -> Found:
    """Sort all kernels into those that support this weight and problem and those that do not, each with its reason."""
    reasons = {candidate.name: candidate.unsupported_reason(stored, problem) for candidate in entries()}
    return Found(
        usable=[candidate for candidate in entries() if reasons[candidate.name] is None],
        unsupported={name: reason for name, reason in reasons.items() if reason is not None},
    )


def _as_name(kernel: KernelEntry) -> tuple[Callable[[str], KernelEntry], tuple[str]]:
    return entry, (kernel.name,)


copyreg.pickle(KernelEntry, _as_name)  # a file of a layer names its kernel, whose functions are no part of it
