"""Which kernels could run a product of a block: in its layouts, or in others with what the change of layout costs."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from sparsefront_kernels import FORMATS, KernelEntry, Problem, SparseFormat, entries, entry, labeled
from sparsefront_kernels.blocked import BlockedFormat
from sparsefront_kernels.blocked_2_4 import Blocked24Format
from sparsefront_kernels.dense.format import DenseFormat
from sparsefront_kernels.gathered import GatheredFormat

from sparsefront.inference.candidates import Candidate
from sparsefront.inference.choice import KernelChoice
from sparsefront.inference.fusion.product_weight import ProductWeight

DENSE = "dense_linear"
SHORT = 16  # kept inputs: tiles differ by more than this, and by more than a block, before they count as different
# Family of the pattern -> others that can store such masks and may be faster: blocks are tiles, half of n:m is 2:4.
ALSO_HELD = {"blocked": ("gathered",), "n_m": ("semi_structured",)}
# Not tried where the other one can run, which was faster in all products of M >= 512 that experiments/operators holds of both on
# an H200 (190 and 6): compiling it for every tile and epilogue takes longer than everything else.
SLOWER_THAN = {
    "gathered_triton": "gathered_cuda",
    "gathered_2_4_filled_triton": "gathered_2_4_filled_cuda",
    "blocked_triton": "blocked_cuda",
    "blocked_2_4_filled_triton": "blocked_2_4_filled_cuda",
}


def dense_candidate(weight: ProductWeight) -> Candidate:
    return Candidate(entry(DENSE), "row_major", DenseFormat(tuple(weight.weight.shape), weight.weight))


def any_kernel(label: str) -> str | None:
    """The `why_not` where every kernel is tried."""
    return None


def sparse_candidates(
    weight: ProductWeight,
    problem: Problem,
    choice: KernelChoice,
    why_not: Callable[[str], str | None] = any_kernel,
) -> tuple[list[Candidate], dict[str, str]]:
    """Usable kernels in the registry's order, and label -> reason for the others that were wanted.

    Args:
        problem: with the product's layout.
        why_not: label -> why it is not to be tried, or None; the weight is then not stored for it either.
    """
    usable, unsupported = [], {}
    if weight.stored is None:
        return usable, unsupported
    formats: dict[str, SparseFormat | str] = {weight.family: weight.stored}

    def unsupported_reason(kernel: KernelEntry, layout: str) -> str | None:
        if kernel.family not in formats:
            formats[kernel.family] = _held(kernel.family, weight)
        stored = formats[kernel.family]
        return stored if isinstance(stored, str) else kernel.unsupported_reason(stored, replace(problem, layout=layout))

    for kernel in entries():
        if not _allowed(kernel, weight.family, problem.device, choice):
            continue
        for layouts in _in_its_layout_then_others(kernel, problem.layout):
            reasons = {
                layout: why_not(kernel.label(layout)) or unsupported_reason(kernel, layout) for layout in layouts
            }
            unsupported |= {kernel.label(layout): reason for layout, reason in reasons.items() if reason is not None}
            if runs := [layout for layout, reason in reasons.items() if reason is None]:
                usable += [Candidate(kernel, layout, formats[kernel.family]) for layout in runs]
                break
    if choice.name is None:
        usable = _without_slower(usable, unsupported)
    return usable, unsupported


def _without_slower(usable: list[Candidate], unsupported: dict[str, str]) -> list[Candidate]:
    there = {candidate.entry.name for candidate in usable}
    kept = []
    for candidate in usable:
        if (faster := SLOWER_THAN.get(candidate.entry.name)) in there:
            unsupported[candidate.label] = f"not tried: {faster} can run and was faster wherever both were measured"
        else:
            kept.append(candidate)
    return kept


def _in_its_layout_then_others(kernel: KernelEntry, layout: str) -> Iterator[list[str]]:
    """The product's layout where the kernel takes it; only where that cannot run, all others that it takes."""
    yield [own for own in kernel.layouts if own == layout]
    yield [other for other in kernel.layouts if other != layout]


def _allowed(kernel: KernelEntry, canonical: str, device: torch.device, choice: KernelChoice) -> bool:
    if choice.name is not None:
        return kernel.name == labeled(choice.name)[0].name
    plain = choice.mode == "reference" or device.type == "cpu"
    if kernel.is_reference != plain:
        return False
    if choice.family is not None:
        return kernel.family == choice.family
    return kernel.family in ((canonical,) if plain else (canonical, *ALSO_HELD.get(canonical, ())))


def _held(family: str, weight: ProductWeight) -> SparseFormat | str:
    parameters = {}
    if family == "gathered":
        if weight.family != "blocked":
            return f"these masks are stored as {weight.family}, not as gathered"
        parameters = {"tile": weight.stored.block[0], "drop_empty_outputs": False}
    elif getattr(weight.stored, "input_order", None) is not None:
        parameters = {"input_order": weight.stored.input_order}
    try:
        return FORMATS[family].from_dense(weight.weight, weight.mask, **parameters)
    except (ValueError, TypeError) as error:  # no such structure, or a format that needs to know more of the pattern
        return str(error)


def work_grain(stored: SparseFormat | None) -> int:
    """Kept inputs by which two tiles may differ however short they are: blocks come whole."""
    return max(SHORT, stored.block[1]) if isinstance(stored, BlockedFormat | Blocked24Format) else SHORT


def tile_lengths(stored: SparseFormat) -> list[int]:
    """How uneven the work is, descending: kept inputs of each tile or row of blocks; else the number of values."""
    if isinstance(stored, GatheredFormat):
        counts = stored.tile_offsets.diff()
    elif stored.family == "gathered_2_4":
        counts = stored.tile_offsets.diff() * 4
    elif isinstance(stored, BlockedFormat | Blocked24Format):
        counts = stored.row_pointers.diff() * stored.block[1]
    else:
        return [stored.values.numel()]
    return counts.sort(descending=True).values.tolist()
