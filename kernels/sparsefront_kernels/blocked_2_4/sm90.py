"""`blocked_2_4_sm90`: the kernel of blocks (`../blocked/sm90.py`) on panels that hold two of every four inputs."""

from dataclasses import replace

from torch import Tensor

from sparsefront_kernels.blocked import sm90
from sparsefront_kernels.blocked.reference import blocked_reference
from sparsefront_kernels.blocked.sm90 import HALVED_KERNEL, HALVED_LAUNCHES, blocked_sm90_unsupported_reason
from sparsefront_kernels.blocked.sm90_packing import K_BLOCK, BlockedSm90Weight, box_of, pack_for_blocked_sm90
from sparsefront_kernels.blocked_2_4.format import Blocked24Format
from sparsefront_kernels.cuda.wgmma_layout import halved_panels, whole_panels
from sparsefront_kernels.format import SparseFormat
from sparsefront_kernels.problem import Problem


def pack_for_blocked_2_4_sm90(stored: Blocked24Format) -> BlockedSm90Weight:
    """Pack the weight for sparse tensor core products, on the format's device.

    Raises:
        ValueError: blocks are not multiples of 64 outputs by 64 inputs.
    """
    reason = _block_unsupported_reason(stored.block)
    if reason:
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


ENTRY = replace(
    sm90.ENTRY,
    name=HALVED_KERNEL,
    family="blocked_2_4",
    pack=pack_for_blocked_2_4_sm90,
    unsupported=_unsupported,
    tunable=HALVED_LAUNCHES,
)


def blocked_2_4_reference(x: Tensor, stored: Blocked24Format, bias: Tensor | None = None) -> Tensor:
    """Like `blocked_reference`, with whole blocks rebuilt in every call: correct, not fast."""
    return blocked_reference(x, stored.filled(), bias)
