"""Which way a chain of blocks runs: as it is, with fused row-major products, or feature-major; by the time of whole blocks."""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from sparsefront.errors import failure_reason
from sparsefront.gpu_sharing.access import alone
from sparsefront.inference.fusion.find import BlockCall
from sparsefront.inference.fusion.fused_block import FusedBlock
from sparsefront.inference.fusion.layout import activation_in_layout
from sparsefront.inference.fusion.report import ProductReport
from sparsefront.measure.compilation import compile_unshared, first_call
from sparsefront.measure.fused_linears import fuse_linears
from sparsefront.measure.kernel_timer import time_layer

log = logging.getLogger(__name__)
AS_THEY_ARE = "as_they_are"


@dataclass(frozen=True)
class Variant:
    """One way of running the blocks of a chain.

    Args:
        name: of the way, for the record.
        blocks: block -> its replacement.
        products: block -> the records of its products.
    """

    name: str
    blocks: Mapping[str, FusedBlock]
    products: Mapping[str, list[ProductReport]]

    def products_ms(self, name: str) -> float:
        return sum(product.latency_us or 0.0 for product in self.products[name]) / 1e3


def representatives(names: Iterable[str], groups: Mapping[str, object]) -> dict[str, float]:
    """The first, middle and last block of every group -> how many blocks of the chain it stands for."""
    members: dict[object, list[str]] = {}
    for name in names:
        members.setdefault(groups[name], []).append(name)
    found = {}
    for blocks in members.values():
        few = dict.fromkeys((blocks[0], blocks[len(blocks) // 2], blocks[-1]))
        found |= dict.fromkeys(few, len(blocks) / len(few))
    return found


def chain_time_ms(
    variant: Variant,
    calls: Mapping[str, BlockCall],
    groups: Mapping[str, object],
    counts: Mapping[str, float],
    device: torch.device,
) -> float | None:
    """Estimated milliseconds of a chain; None where a block cannot run or cannot be timed.

    One block of each group (equal structure and call) is timed whole; the others differ from it by the times of their products.

    Args:
        groups: block -> what equal blocks have in common.
        counts: block -> how many it stands for; the variant has to hold them all.
        device: of the blocks.
    """
    if any(name not in variant.blocks for name in counts):
        return None
    first = {groups[name]: name for name in reversed(list(counts))}
    rest: dict[object, float] = {}
    with alone(device):
        for group, name in first.items():
            block = variant.blocks[name]
            whole = block_time_ms(block, calls[name], feature_major=block.feature_major)
            if whole is None:
                return None
            rest[group] = whole - variant.products_ms(name)
    return sum(count * (rest[groups[name]] + variant.products_ms(name)) for name, count in counts.items())


def plain_time_ms(
    blocks: Mapping[str, nn.Module], calls: Mapping[str, BlockCall], groups: Mapping[str, object]
) -> float | None:
    """Milliseconds of all blocks as they are, with masked dense weights, as the dense baseline runs them: the faster of eager and
    compiled, and query, key and value as one product where that is faster.
    """
    known: dict[object, float | None] = {}
    for name, block in blocks.items():
        if groups[name] not in known:
            known[groups[name]] = _plain_block_time_ms(block, calls[name])
    times = [known[groups[name]] for name in blocks]
    return None if None in times else sum(times)


def _plain_block_time_ms(block: nn.Module, call: BlockCall) -> float | None:
    """Of its forms only the one that is faster in eager mode is compiled."""
    forms = [block]
    if (fused := fuse_linears(block, *call.args, **call.kwargs)) is not None:
        forms.append(fused)
    eager = {form: time for form in forms if (time := block_time_ms(form, call)) is not None}
    compiled = block_time_ms(_Compiled(min(eager, key=eager.__getitem__, default=block)), call)
    return min((time for time in (*eager.values(), compiled) if time is not None), default=None)


def block_time_ms(block: nn.Module, call: BlockCall, *, feature_major: bool = False) -> float | None:
    """Milliseconds of one call, as a graph; None where it fails.

    Args:
        feature_major: how the activation that enters lies.
    """
    args = [_entering(value, feature_major) if place == 0 else value for place, value in enumerate(call.args)]
    try:
        return time_layer(block, *args, **call.kwargs).latency_us / 1e3
    except Exception as error:  # a variant that cannot run is not chosen
        torch.cuda.synchronize()
        log.warning("a block could not be timed: %s", failure_reason(error))
        return None


class _Compiled(nn.Module):
    """A block through torch.compile; copies share it."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block
        self._call, self._compiled = compile_unshared(block), False

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if self._compiled:
            return self._call(*args, **kwargs)
        tensors = [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]
        found = first_call(lambda: self._call(*args, **kwargs), tensors[0].device)
        self._compiled = True
        return found

    def __deepcopy__(self, memo: dict[int, Any]) -> "_Compiled":
        return self


def _entering(value: Any, feature_major: bool) -> Any:
    if isinstance(value, Tensor) and value.is_floating_point() and value.dim() > 1:
        return activation_in_layout(value, feature_major=feature_major)
    return value
