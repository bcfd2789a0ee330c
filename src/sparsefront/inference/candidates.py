"""Which kernels could run a layer: every family that can store its mask, every kernel that takes its problem."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from sparsefront_kernels import FORMATS, KernelEntry, Problem, SparseFormat, entries
from torch import Tensor

TAKES_ANY_PATTERN = ("csr", "semi_structured")  # need no parameters of the pattern: their from_dense says what fits
READS_IN_ORDER = ("semi_structured",)  # of these, those that take the order of inputs in which n:m windows were made


@dataclass(frozen=True)
class Candidate:
    """A kernel and the weight as it reads it."""

    entry: KernelEntry
    format: SparseFormat


@dataclass(frozen=True)
class Candidates:
    """What could run, and for every other kernel that was wanted, why it cannot."""

    usable: list[Candidate]
    unsupported: dict[str, str]


def find_candidates(
    canonical: SparseFormat, mask: Tensor, problem: Problem, wants: Callable[[KernelEntry], bool]
) -> Candidates:
    """Sort the wanted kernels into usable and unsupported ones.

    Args:
        canonical: the layer in its pattern's own format; other formats are made on its device.
        mask: bool [N, K] on the same device, True = keep.
        problem: of the layer, row-major; asked in each kernel's own layout, since the layer transposes where needed.
        wants: which kernels to try at all.
    """
    formats: dict[str, SparseFormat | str] = {}  # or why the family cannot store the mask
    usable, unsupported = [], {}
    for kernel in filter(wants, entries()):
        if kernel.family not in formats:
            formats[kernel.family] = _held(kernel.family, canonical, mask)
        stored = formats[kernel.family]
        if isinstance(stored, str):
            unsupported[kernel.name] = stored
        elif (reason := kernel.unsupported_reason(stored, replace(problem, layout=kernel.layout))) is not None:
            unsupported[kernel.name] = reason
        else:
            usable.append(Candidate(kernel, stored))
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
