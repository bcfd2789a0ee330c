"""Times of blocks and of chains of blocks in CUDA graphs."""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from sparsefront.errors import failure_reason
from sparsefront.gpu import exclusive
from sparsefront.inference.fusion.calls import BlockCall, call_tensors
from sparsefront.inference.fusion.fused import FusedBlock
from sparsefront.inference.fusion.fused_product import activation_in_layout
from sparsefront.inference.fusion.plan import ProductReport
from sparsefront.measure.execution_mode import compile_unshared, first_call, within_recompile_limit
from sparsefront.measure.search_time import BLOCK, time_work, too_late
from sparsefront.measure.timers import time_layer
from sparsefront.measure.variants import fuse_linears

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Variant:
    """The rewritten blocks of a chain.

    Args:
        name: in the report.
        blocks: block -> its replacement.
        products: block -> the reports of its products.
    """

    name: str
    blocks: Mapping[str, FusedBlock]
    products: Mapping[str, list[ProductReport]]

    def products_ms(self, name: str) -> float:
        return sum(product.latency_us or 0.0 for product in self.products[name]) / 1e3


def representatives(names: Iterable[str], groups: Mapping[str, object]) -> dict[str, float]:
    """The first, middle and last block of every group -> number of blocks of the chain that it represents."""
    members: dict[object, list[str]] = {}
    for name in names:
        members.setdefault(groups[name], []).append(name)
    block_counts: dict[str, float] = {}
    for blocks in members.values():
        few = dict.fromkeys((blocks[0], blocks[len(blocks) // 2], blocks[-1]))
        block_counts |= dict.fromkeys(few, len(blocks) / len(few))
    return block_counts


def chain_time_ms(
    variant: Variant,
    calls: Mapping[str, BlockCall],
    groups: Mapping[str, object],
    counts: Mapping[str, float],
    device: torch.device,
) -> float | None:
    """Estimated milliseconds of a chain; None where a block cannot run or cannot be timed.

    One block of each group (equal structure and call) is timed as a whole; others are estimated from the difference in their
    products' times. Row-major blocks are also timed with torch.compile, which fuses norms and activations with neighboring
    operators and quantization; the faster time counts.

    Args:
        groups: block -> key of its group of equal blocks.
        counts: block -> number of blocks that it represents; the variant has to have them all.
        device: of the blocks.
    """
    if any(name not in variant.blocks for name in counts):
        return None
    first = {groups[name]: name for name in reversed(list(counts))}
    rest: dict[object, float] = {}
    with exclusive(device):
        for group, name in first.items():
            block = variant.blocks[name]
            if block.feature_major:
                whole = block_time_ms(block, calls[name], feature_major=True)
            else:
                whole = faster_mode_ms(block, calls[name])
            if whole is None:
                return None
            rest[group] = whole - variant.products_ms(name)
    return sum(count * (rest[groups[name]] + variant.products_ms(name)) for name, count in counts.items())


def plain_time_ms(
    blocks: Mapping[str, nn.Module], calls: Mapping[str, BlockCall], groups: Mapping[str, object]
) -> float | None:
    """Milliseconds of all unchanged blocks, with masked dense weights, as in the dense baseline: the faster of eager and
    compiled, and with query, key and value as one product if that is faster.
    """
    known: dict[object, float | None] = {}
    for name, block in blocks.items():
        if groups[name] not in known:
            known[groups[name]] = _plain_block_time_ms(block, calls[name])
    times = [known[groups[name]] for name in blocks]
    timed = [time for time in times if time is not None]
    return sum(timed) if len(timed) == len(times) else None


def _plain_block_time_ms(block: nn.Module, call: BlockCall) -> float | None:
    """Time a block and its variant with joined Linears; only the faster of them in eager mode is compiled."""
    forms = [block]
    fused = fuse_linears(block, *call.args, **call.kwargs)
    if fused is not None:
        forms.append(fused)
    eager = {form: time for form in forms if (time := block_time_ms(form, call)) is not None}
    compiled = compiled_block_time_ms(min(eager, key=eager.__getitem__, default=block), call)
    return min((time for time in (*eager.values(), compiled) if time is not None), default=None)


def faster_mode_ms(block: nn.Module, call: BlockCall) -> float | None:
    """Milliseconds of one call, eager or with torch.compile, whichever is faster; None where both fail."""
    times = (block_time_ms(block, call), compiled_block_time_ms(block, call))
    return min((time for time in times if time is not None), default=None)


def block_time_ms(block: nn.Module, call: BlockCall, *, feature_major: bool = False) -> float | None:
    """Milliseconds of one call in a CUDA graph; None where it fails.

    Args:
        feature_major: layout of the first argument.
    """
    args = [_in_entry_layout(value, feature_major) if place == 0 else value for place, value in enumerate(call.args)]
    try:
        return time_layer(block, *args, **call.kwargs).latency_us / 1e3
    except Exception as error:  # a variant that cannot run is not chosen
        torch.cuda.synchronize()
        log.warning("a block could not be timed: %s", failure_reason(error))
        return None


def compiled_block_time_ms(block: nn.Module, call: BlockCall) -> float | None:
    """`block_time_ms` with torch.compile; None where it fails or there is no time to compile it."""
    if too_late(f"{type(block).__name__} compiled", BLOCK) is not None:
        return None
    with time_work(BLOCK), within_recompile_limit(call_tensors(call.args, call.kwargs)[0].device):
        return block_time_ms(_Compiled(block), call)


class _Compiled(nn.Module):
    """A block through torch.compile; copies share it."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block
        self._call, self._compiled = compile_unshared(block), False

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if self._compiled:
            return self._call(*args, **kwargs)
        device = call_tensors(args, kwargs)[0].device
        output = first_call(lambda: self._call(*args, **kwargs), device)
        self._compiled = True
        return output

    def __deepcopy__(self, memo: dict[int, Any]) -> "_Compiled":
        return self


def _in_entry_layout(value: Any, feature_major: bool) -> Any:
    if isinstance(value, Tensor) and value.is_floating_point() and value.dim() > 1:
        return activation_in_layout(value, feature_major=feature_major)
    return value
