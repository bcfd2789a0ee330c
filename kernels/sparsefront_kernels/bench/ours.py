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
from sparsefront_kernels.tuning.launches import Tunable


@dataclass(frozen=True)
class Chosen:
    """Which of our kernels are asked for.

    Args:
        kernels: labels as they stand in the results (of other layouts than row-major with the layout behind the name), or
            patterns of them with * and ?; empty for all.
        layouts: of X and Y.
        families: of storage; the first is the one whose masks they multiply by, where these are random.
    Raises:
        ValueError: a name that no kernel of the families has.
    """

    kernels: tuple[str, ...]
    layouts: tuple[str, ...]
    families: tuple[str, ...] = ("gathered",)

    def __post_init__(self) -> None:
        labels = [entry.label(layout) for entry, layout in self._of_families()]
        for asked in self.kernels:
            if not any(fnmatchcase(label, asked) for label in labels):
                family = " or ".join(self.families)
                raise ValueError(f"no kernel of {family} is called {asked}; there are {', '.join(labels)}")

    def entries(self, dtype_name: str) -> list[tuple[KernelEntry, str]]:
        """GPU kernels of the families that compute in this dtype, each with one of these layouts, whatever the problem."""
        return [
            (entry, layout)
            for entry, layout in self._of_families()
            if layout in self.layouts and entry.computes_in(dtype_name)
            if not self.kernels or any(fnmatchcase(entry.label(layout), pattern) for pattern in self.kernels)
        ]

    def _of_families(self) -> list[tuple[KernelEntry, str]]:
        ours = [entry for entry in entries() if entry.family in self.families and entry.requires_cuda]
        return [(entry, layout) for entry in ours for layout in entry.layouts]


@dataclass(frozen=True)
class Ours:
    """A kernel of this package on a problem: the provider, which names the layout, and what tuning needs."""

    provider: Provider
    entry: KernelEntry
    packed: Any

    @property
    def tunable(self) -> Tunable | None:
        return self.entry.tunable_in(self.provider.layout)


def our_providers(
    drawn: DrawnWeight, *, wanted: list[tuple[KernelEntry, str]], report_unsupported: Callable[[str], None]
) -> list[Ours]:
    """The wanted kernels and layouts that support the problem, of the families that the weight is stored in.

    Args:
        report_unsupported: called with the reason of each kernel that does not support it.
    """
    copies: dict[Any, Callable[[int], Any]] = {}  # some kernels prepare alike
    found = []
    for entry, layout in wanted:
        label = entry.label(layout)
        if (stored := drawn.stored.get(entry.family)) is None:
            report_unsupported(f"{label} is left out: {drawn.pattern} is not stored as {entry.family}")
            continue
        if reason := entry.unsupported_reason(stored, drawn.setting.problem(layout)):
            report_unsupported(f"{label} is left out: {reason}")
            continue
        key = entry.family, entry.pack
        if key not in copies:
            copies[key] = numbered(entry.pack(stored))
        provider = _provider(drawn, entry, layout, copies[key])
        found.append(Ours(provider, entry, copies[key](0)))
    return found


def _provider(drawn: DrawnWeight, entry: KernelEntry, layout: str, packed: Callable[[int], Any]) -> Provider:
    setting = drawn.setting
    weight_bytes = family_masks(entry.family).weight_bytes(drawn.stored[entry.family])

    def make(copy: int):
        x, own = setting.x_in(layout, copy), packed(copy)
        return lambda: entry.run(x, own, layout=layout)

    return Provider(
        family=entry.family,
        kernel=entry.label(layout),
        pattern=drawn.pattern,
        granularity=drawn.granularity,
        distribution=drawn.distribution,
        mask_settings=drawn.mask_settings,
        dtype_name=setting.dtype_name,
        layout=layout,
        sparsity=drawn.sparsity,
        outputs=setting.shape.n,
        operand_bytes=weight_bytes + setting.activation_bytes,
        weight_bytes=weight_bytes,
        make=make,
        reference=drawn.reference,
    )
