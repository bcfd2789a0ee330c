"""Which kernels could run a layer: every family that can store its mask, every kernel that takes its problem."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from sparsefront_kernels import FORMATS, KernelEntry, Problem, SparseFormat, entries
from torch import Tensor

TAKES_ANY_PATTERN = ("csr", "semi_structured")  # need no parameters of the pattern: their from_dense says what fits
READS_IN_ORDER = ("semi_structured",)  # of these, those that take the order of inputs in which n:m windows were made


@dataclass(frozen=True)
class Candidate:
    """A kernel in one of its layouts, and the weight as it reads it."""

    entry: KernelEntry
    layout: str
    format: SparseFormat

    @property
    def label(self) -> str:
        """What results call it."""
        return self.entry.label(self.layout)


@dataclass(frozen=True)
class Candidates:
    """What could run, and label -> why it cannot for every other kernel and layout that was wanted."""

    usable: list[Candidate]
    unsupported: dict[str, str]


def find_candidates(
    canonical: SparseFormat, mask: Tensor, problem: Problem, wants: Callable[[KernelEntry, str], bool]
) -> Candidates:
    """Sort the wanted kernels, each in its wanted layouts, into usable and unsupported ones.

    Args:
        canonical: the layer in its pattern's own format; other formats are made on its device.
        mask: bool [N, K] on the same device, True = keep.
        problem: of the layer, row-major; asked in each wanted layout, since the layer transposes where needed.
        wants: (kernel, layout) -> whether to try it at all.
    """
    formats: dict[str, SparseFormat | str] = {}  # or why the family cannot store the mask
    usable, unsupported = [], {}
    wanted = ((kernel, layout) for kernel in entries() for layout in kernel.layouts if wants(kernel, layout))
    for kernel, layout in wanted:
        if kernel.family not in formats:
            formats[kernel.family] = _held(kernel.family, canonical, mask)
        stored = formats[kernel.family]
        if isinstance(stored, str):
            unsupported[kernel.label(layout)] = stored
        elif (reason := kernel.unsupported_reason(stored, replace(problem, layout=layout))) is not None:
            unsupported[kernel.label(layout)] = reason
        else:
            usable.append(Candidate(kernel, layout, stored))
    return Candidates(usable, unsupported)


def _held(family: str, canonical: SparseFormat, mask: Tensor) -> SparseFormat | str:
    if family == canonical.family:
        return canonical
    if family not in TAKES_ANY_PATTERN:
        families = dict.fromkeys((canonical.family, *TAKES_ANY_PATTERN))
        return f"these masks are stored as {', '.join(families)}, not as {family}"
    orders = {}
    if family in READS_IN_ORDER and getattr(canonical, "input_order", None) is not None:
        orders["input_order"] = canonical.input_order
    try:
        return FORMATS[family].from_dense(canonical.to_dense(), mask, **orders)
    except ValueError as error:  # how a format says that a mask does not have its structure
        return str(error)
