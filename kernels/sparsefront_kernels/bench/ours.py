"""The kernels of this package as providers."""

from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from sparsefront_kernels.bench.copies import numbered
from sparsefront_kernels.bench.drawn import DrawnWeight
from sparsefront_kernels.bench.families import family_masks
from sparsefront_kernels.bench.provider import Provider
from sparsefront_kernels.kernel_entry import KernelEntry
from sparsefront_kernels.registry import entries


@dataclass(frozen=True)
class Chosen:
    """Which of our kernels are asked for.

    Args:
        kernels: names, or patterns of names with * and ?; empty for all.
        layouts: of X and Y.
        families: of storage; the first is the one whose masks they multiply by, where these are random.
    Raises:
        ValueError: a name that no kernel of the families has.
    """

    kernels: tuple[str, ...]
    layouts: tuple[str, ...]
    families: tuple[str, ...] = ("gathered",)

    def __post_init__(self) -> None:
        names = [entry.name for entry in entries() if entry.family in self.families and entry.requires_cuda]
        for asked in self.kernels:
            if not any(fnmatchcase(name, asked) for name in names):
                family = " or ".join(self.families)
                raise ValueError(f"no kernel of {family} is called {asked}; there are {', '.join(names)}")

    def entries(self, dtype_name: str) -> list[KernelEntry]:
        """GPU kernels of the families in these layouts that compute in this dtype, whatever the problem."""
        return [
            entry
            for entry in entries()
            if entry.family in self.families and entry.requires_cuda and entry.layout in self.layouts
            if entry.computes_in(dtype_name)
            if not self.kernels or any(fnmatchcase(entry.name, pattern) for pattern in self.kernels)
        ]


@dataclass(frozen=True)
class Ours:
    """A kernel of this package on a problem: the provider, and what tuning needs."""

    provider: Provider
    entry: KernelEntry
    packed: Any


def our_providers(
    drawn: DrawnWeight, *, wanted: list[KernelEntry], report_unsupported: Callable[[str], None]
) -> list[Ours]:
    """The wanted kernels that support the problem, of the families that the weight is stored in.

    Args:
        report_unsupported: called with the reason of each kernel that does not support it.
    """
    copies: dict[Any, Callable[[int], Any]] = {}  # entries that differ in layout prepare alike
    found = []
    for entry in wanted:
        if (stored := drawn.stored.get(entry.family)) is None:
            report_unsupported(f"{entry.name} is left out: {drawn.pattern} is not stored as {entry.family}")
            continue
        if reason := entry.unsupported_reason(stored, drawn.setting.problem(entry.layout)):
            report_unsupported(f"{entry.name} is left out: {reason}")
            continue
        key = entry.family, entry.pack
        if key not in copies:
            copies[key] = numbered(entry.pack(stored))
        provider = _provider(drawn, entry, copies[key])
        found.append(Ours(provider, entry, copies[key](0)))
    return found


def _provider(drawn: DrawnWeight, entry: KernelEntry, packed: Callable[[int], Any]) -> Provider:
    setting = drawn.setting
    weight_bytes = family_masks(entry.family).weight_bytes(drawn.stored[entry.family])

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
        operand_bytes=weight_bytes + setting.activation_bytes,
        weight_bytes=weight_bytes,
        make=make,
        reference=drawn.reference,
    )
