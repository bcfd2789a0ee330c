"""The kernels of this package as contenders."""

from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from sparsefront_kernels.bench.contender import Contender
from sparsefront_kernels.bench.copies import numbered
from sparsefront_kernels.bench.drawn import DrawnWeight
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
    """A kernel of ours on a problem: the contender, and what tuning needs besides."""

    contender: Contender
    entry: KernelEntry
    prepared: Any


def gathered_contenders(drawn: DrawnWeight, *, wanted: list[KernelEntry], refused: Callable[[str], None]) -> list[Ours]:
    """The wanted kernels that take the problem.

    Args:
        refused: takes the reason of each kernel that does not take it.
    """
    copies: dict[Any, Callable[[int], Any]] = {}  # entries that differ in layout prepare alike
    found = []
    for entry in wanted:
        if reason := entry.refusal(drawn.stored, drawn.setting.problem(entry.layout)):
            refused(f"{entry.name} is left out: {reason}")
            continue
        if entry.prepare not in copies:
            copies[entry.prepare] = numbered(entry.prepare(drawn.stored))
        contender = _contender(drawn, entry, copies[entry.prepare])
        found.append(Ours(contender, entry, copies[entry.prepare](0)))
    return found


def _contender(drawn: DrawnWeight, entry: KernelEntry, prepared: Callable[[int], Any]) -> Contender:
    setting = drawn.setting

    def make(copy: int):
        x, own = setting.x_in(entry.layout, copy), prepared(copy)
        return lambda: entry.run(x, own, None)

    return Contender(
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
        expected=drawn.expected,
    )
