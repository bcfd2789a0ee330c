"""The kernels of this package as contenders."""

from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from sparsefront_kernels.bench.contender import Contender
from sparsefront_kernels.bench.copies import numbered
from sparsefront_kernels.bench.expected import Expected
from sparsefront_kernels.bench.setting import Setting
from sparsefront_kernels.bench.weights import DISTRIBUTIONS
from sparsefront_kernels.gathered.format import GatheredFormat
from sparsefront_kernels.kernel_entry import KernelEntry
from sparsefront_kernels.registry import entries

PATTERN = {"equal": "vector_wise", "uneven": "tile_wise"}
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


def gathered_contenders(
    setting: Setting, *, granularity: int, distribution: str, wanted: list[KernelEntry], refused: Callable[[str], None]
) -> list[Ours]:
    """The wanted kernels that take the problem.

    Args:
        granularity: outputs that share their inputs.
        distribution: a name of `DISTRIBUTIONS`.
        refused: takes the reason of each kernel that does not take it.
    """
    shape = setting.shape
    mask = DISTRIBUTIONS[distribution](shape.n, shape.k, granularity, setting.sparsity, setting.device)
    weight = setting.weight() * mask
    stored = GatheredFormat.from_dense(weight, mask, tile=granularity, drop_empty_outputs=False)
    expected = setting.expected(weight)
    copies: dict[Any, Callable[[int], Any]] = {}  # entries that differ in layout prepare alike
    found = []
    for entry in wanted:
        if reason := entry.refusal(stored, setting.problem(entry.layout)):
            refused(f"{entry.name} is left out: {reason}")
            continue
        if entry.prepare not in copies:
            copies[entry.prepare] = numbered(entry.prepare(stored))
        contender = _contender(setting, entry, stored, copies[entry.prepare], granularity, distribution, expected)
        found.append(Ours(contender, entry, copies[entry.prepare](0)))
    return found


def _contender(
    setting: Setting,
    entry: KernelEntry,
    stored: GatheredFormat,
    prepared: Callable[[int], Any],
    granularity: int,
    distribution: str,
    expected: Expected,
) -> Contender:
    def make(copy: int):
        x, own = setting.x_in(entry.layout, copy), prepared(copy)
        return lambda: entry.run(x, own, None)

    return Contender(
        family=entry.family,
        kernel=entry.name,
        pattern=PATTERN[distribution],
        granularity=granularity,
        distribution=distribution,
        dtype_name=setting.dtype_name,
        layout=entry.layout,
        sparsity=1 - stored.values.numel() / (setting.shape.n * setting.shape.k),
        operand_bytes=stored.nbytes + setting.activation_bytes,
        weight_bytes=stored.nbytes,
        make=make,
        expected=expected,
    )
