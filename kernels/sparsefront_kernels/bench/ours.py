"""The kernels of this package as providers."""

from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from sparsefront_kernels.bench.copies import numbered
from sparsefront_kernels.bench.drawn import DrawnWeight
from sparsefront_kernels.bench.provider import Provider
from sparsefront_kernels.kernel_entry import KernelEntry
from sparsefront_kernels.registry import entries

FAMILY = "gathered"


@dataclass(frozen=True)
class Chosen:
    """Which of our kernels are asked for.

    Args:
        kernels: names, or patterns of names with * and ?; empty for all.
        layouts: of X and Y.
    Raises:
        ValueError: a name that no kernel of the family has.
    """

    kernels: tuple[str, ...]
    layouts: tuple[str, ...]

    def __post_init__(self) -> None:
        names = [entry.name for entry in entries() if entry.family == FAMILY and entry.requires_cuda]
        for asked in self.kernels:
            if not any(fnmatchcase(name, asked) for name in names):
                raise ValueError(f"no kernel of this family is called {asked}; there are {', '.join(names)}")

    def entries(self, dtype_name: str) -> list[KernelEntry]:
        """GPU kernels of the family in these layouts that compute in this dtype, whatever the problem."""
        return [
            entry
            for entry in entries()
            if entry.family == FAMILY and entry.requires_cuda and entry.layout in self.layouts
            if entry.computes_in(dtype_name)
            if not self.kernels or any(fnmatchcase(entry.name, pattern) for pattern in self.kernels)
        ]


@dataclass(frozen=True)
class Ours:
    """A kernel of this package on a problem: the provider, and what tuning needs."""

    provider: Provider
    entry: KernelEntry
    packed: Any


def gathered_providers(
    drawn: DrawnWeight, *, wanted: list[KernelEntry], report_unsupported: Callable[[str], None]
) -> list[Ours]:
    """The wanted kernels that support the problem.

    Args:
        report_unsupported: called with the reason of each kernel that does not support it.
    """
    copies: dict[Any, Callable[[int], Any]] = {}  # entries that differ in layout prepare alike
    found = []
    for entry in wanted:
        if reason := entry.unsupported_reason(drawn.stored, drawn.setting.problem(entry.layout)):
            report_unsupported(f"{entry.name} is left out: {reason}")
            continue
        if entry.pack not in copies:
            copies[entry.pack] = numbered(entry.pack(drawn.stored))
        provider = _provider(drawn, entry, copies[entry.pack])
        found.append(Ours(provider, entry, copies[entry.pack](0)))
    return found


def _provider(drawn: DrawnWeight, entry: KernelEntry, packed: Callable[[int], Any]) -> Provider:
    setting = drawn.setting

    def make(copy: int):
        x, own = setting.x_in(entry.layout, copy), packed(copy)
        return lambda: entry.run(x, own, None)

    return Provider(
        family=entry.family,
        kernel=entry.name,
        pattern=drawn.pattern,
        granularity=drawn.granularity,
        distribution=drawn.distribution,
        mask_settings=drawn.mask_settings,
        dtype_name=setting.dtype_name,
        layout=entry.layout,
        sparsity=drawn.sparsity,
        outputs=setting.shape.n,
        operand_bytes=drawn.stored.nbytes + setting.activation_bytes,
        weight_bytes=drawn.stored.nbytes,
        make=make,
        reference=drawn.reference,
    )
