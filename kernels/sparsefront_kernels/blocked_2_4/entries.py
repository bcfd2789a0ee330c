"""The kernels of the blocked_2_4 family: sparse products on Hopper, and the blocked family's kernels on whole blocks."""

from dataclasses import replace

from sparsefront_kernels.blocked.cuda.entries import blocked_sm90_product, blocked_sm90_unsupported_reason
from sparsefront_kernels.blocked.cuda.packed_weight import K_BLOCK, BlockedCudaWeight, box_of, pack_for_blocked_sm90
from sparsefront_kernels.blocked.cuda.tuning import HALVED_KERNEL, HALVED_LAUNCHES
from sparsefront_kernels.blocked.entries import ENTRIES as BLOCKED_ENTRIES
from sparsefront_kernels.blocked_2_4.format import Blocked24Format
from sparsefront_kernels.blocked_2_4.reference import blocked_2_4_reference
from sparsefront_kernels.common.wgmma_layout import halved_panels, whole_panels
from sparsefront_kernels.format import SparseFormat
from sparsefront_kernels.kernel_entry import KernelEntry, filled_entry
from sparsefront_kernels.problem import LAYOUTS, Problem


def pack_for_blocked_2_4_sm90(stored: Blocked24Format) -> BlockedCudaWeight:
    """The weight laid out for the sparse products of the Hopper kernel, on the format's device.

    Raises:
        ValueError: a block that is no multiple of 64 outputs by a multiple of 64 inputs.
    """
    if reason := _block_unsupported_reason(stored.block):
        raise ValueError(f"blocked_2_4: {reason}")
    packed = pack_for_blocked_sm90(stored.filled())
    return replace(packed, panels=halved_panels(whole_panels(packed.panels)))


def _block_unsupported_reason(block: tuple[int, int]) -> str | None:
    if box_of(block[1]) == K_BLOCK:
        return None
    return (
        f"takes blocks of a multiple of {K_BLOCK} inputs, not {block[0]}x{block[1]}: a panel holds 32 of 64 neighbors"
    )


def _unsupported(stored: SparseFormat, problem: Problem) -> str | None:
    return _block_unsupported_reason(stored.block) or blocked_sm90_unsupported_reason(stored, problem)


ENTRIES = (
    KernelEntry(name="blocked_2_4_reference", family="blocked_2_4", product=blocked_2_4_reference, is_reference=True),
    KernelEntry(
        name=HALVED_KERNEL,
        family="blocked_2_4",
        product=blocked_sm90_product,
        pack=pack_for_blocked_2_4_sm90,
        unsupported=_unsupported,
        requires_cuda=True,
        layouts=LAYOUTS,
        fuses_epilogue=True,
        tunable=HALVED_LAUNCHES,
    ),
    *(filled_entry(entry, "blocked_2_4") for entry in BLOCKED_ENTRIES if not entry.is_reference),
)
