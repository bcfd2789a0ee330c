"""Checks before anything is trained: swapped networks, a pattern's `storage`, sparsities that prune nothing or empty layers.

They read the kernel package's formats but change no mask, so keys of stages exclude this file (`BOOKKEEPING` of
`artifacts.code_digest`): editing a format repeats no pruning or training.
"""

import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache, partial

import torch
from sparsefront_kernels import FORMATS
from sparsefront_kernels.sparse_layer import SparseLayer
from torch import nn

from sparsefront.allocation.base import Allocation, GlobalAllocation, PerLayerAllocation
from sparsefront.errors import InvalidSetting
from sparsefront.patterns.base import LARGEST_M, Pattern

CLOSE = 1e-3  # relative precision of the nearest sparsity in messages
WeightShapes = Mapping[str, tuple[int, ...]]


def require_unswapped(net: nn.Module) -> None:
    """Raise InvalidSetting for a network that runs kernels: it has no weights left to prune, swap or export."""
    if any(isinstance(module, SparseLayer) for module in net.modules()):
        raise InvalidSetting("net", type(net).__name__, "was swapped already: give a copy of the pruned network")


def require_effect(pattern: Pattern, allocation: Allocation, weight_shapes: WeightShapes, sparsity: float) -> None:
    """Check that pruning removes at least one weight and empties no layer.

    If layers are ranked together, only totals are known: rejected are sparsities at which no layer would lose a weight even if
    it alone gave up all of them, or at which every layer would be emptied. Not checked: allocations that depend on scores or
    measured times, and patterns that tie layers, which plan whole units (`patterns.width`).

    Args:
        weight_shapes: layer to prune -> shape of its weight: Linear (N, K), Conv2d (C_out, C_in, kh, kw).
        sparsity: the final one; 0 is accepted.
    Raises:
        InvalidSetting: key `sparsity`, with the nearest one that works.
    """
    together = isinstance(allocation, GlobalAllocation)
    given_by_shape = isinstance(allocation, PerLayerAllocation) and not allocation.fixed_by_first_scores
    if sparsity == 0 or pattern.mixed or pattern.takes_blocks or pattern.tied or not (together or given_by_shape):
        return
    total = sum(map(math.prod, weight_shapes.values()))

    def levels(asked: float, *, at_most: bool) -> dict[str, float]:
        """The sparsity of each layer; with `at_most`, the highest that it may reach if layers are ranked together."""
        if isinstance(allocation, PerLayerAllocation):
            return allocation.layer_sparsities(weight_shapes, asked, lambda layer, level: 0.0)
        shares = {layer: total / math.prod(shape) if at_most else 1.0 for layer, shape in weight_shapes.items()}
        return {layer: asked * share for layer, share in shares.items()}

    def some_pruned(asked: float) -> bool:
        distinct = {(_matrix(weight_shapes[layer]), level) for layer, level in levels(asked, at_most=True).items()}
        return any(_prunes(pattern, shape, level) for shape, level in distinct)

    def empty_layers(asked: float) -> list[str]:
        empties = lru_cache(partial(_empties, pattern))  # equal layers have equal answers
        per_layer = levels(asked, at_most=False)
        layers = [layer for layer, level in per_layer.items() if empties(_matrix(weight_shapes[layer]), level)]
        return layers if not together or len(layers) == len(weight_shapes) else []

    if not some_pruned(sparsity):
        least = _least(pattern, sparsity, lambda asked: _allows(pattern, asked) and some_pruned(asked))
        nearest = "and no sparsity changes that" if least is None else f"the nearest that prunes is {least:g}"
        why = f"{pattern.name} would prune no weight of any layer"
        raise InvalidSetting("sparsity", sparsity, f"rounds to no change: {why}; {nearest}")
    empty = empty_layers(sparsity)
    if empty:
        smallest = min(map(math.prod, weight_shapes.values()))
        most = next(at for k in range(smallest.bit_length()) if not empty_layers(at := 1 - 2**k / smallest))
        shape = list(_matrix(weight_shapes[empty[0]]))
        why = f"{empty[0]} {shape} would keep no weight"
        raise InvalidSetting(
            "sparsity", sparsity, f"rounds to empty layers: {why}; the nearest that works is {_down(most)}"
        )


def _allows(pattern: Pattern, sparsity: float) -> bool:
    """Whether layers of some shape can have this sparsity."""
    try:
        pattern.check_sparsity(sparsity)
    except InvalidSetting:
        return False
    return True


def _prunes(pattern: Pattern, shape: tuple[int, int], sparsity: float) -> bool:
    """Whether a layer [N, K] on its own loses a weight, if the smallest groups are pruned first."""
    if sparsity <= 0 or sparsity >= 1:
        return sparsity >= 1
    if pattern.unsupported_reason(shape, sparsity) is not None:
        return False
    return sparsity * math.prod(shape) > pattern.rounding_unit(shape) or _count_kept(
        pattern, shape, sparsity
    ) < math.prod(shape)


def _empties(pattern: Pattern, shape: tuple[int, int], sparsity: float) -> bool:
    """Whether a layer [N, K] on its own is emptied, or would be if patterns did not leave it one group."""
    if (1 - sparsity) * math.prod(shape) < 0.5:
        return True
    if sparsity <= 0 or (1 - sparsity) * math.prod(shape) > pattern.rounding_unit(shape):
        return False
    return pattern.unsupported_reason(shape, sparsity) is None and _count_kept(pattern, shape, sparsity) == 0


def _count_kept(pattern: Pattern, shape: tuple[int, int], sparsity: float) -> int:
    """Number of weights kept for scores that decrease with the output, so that a narrower last tile is pruned first."""
    scores = torch.arange(math.prod(shape), 0, -1, dtype=torch.float32).view(shape)
    return int(pattern.layer_mask(scores, torch.ones(shape, dtype=torch.bool), sparsity).sum())


def _least(pattern: Pattern, sparsity: float, works: Callable[[float], bool]) -> float | None:
    """The lowest sparsity above this one that works, approximately; None if there is none."""
    if pattern.balanced:
        windows = {1 - n / m for m in range(2, LARGEST_M + 1) for n in range(1, m)}
        return next((round(level, 6) for level in sorted(windows) if level > sparsity and works(level)), None)
    low, high = sparsity, sparsity
    while not works(high):
        low, high = high, high * 2 if high < 0.4 else (1 + high) / 2
        if high > 1 - 1e-6:
            return None
    while high - low > CLOSE * high:
        middle = (low + high) / 2
        low, high = (low, middle) if works(middle) else (middle, high)
    digits = 3 - math.floor(math.log10(high))
    rounded = math.ceil(high * 10**digits) / 10**digits
    return rounded if rounded < 1 and works(rounded) else high


def _down(sparsity: float) -> str:
    """Format rounded down, with as many digits as its distance to 1 needs."""
    digits = 2 - math.floor(math.log10(1 - sparsity))
    return f"{math.floor(sparsity * 10**digits) / 10**digits:.{digits}f}".rstrip("0")


def _matrix(shape: tuple[int, ...]) -> tuple[int, int]:
    return shape[0], math.prod(shape[1:])


# The storage of a pattern, which may be user code.


def require_storable(pattern: Pattern, shapes: Iterable[tuple[int, int]], sparsity: float) -> None:
    """Check `Pattern.storage` for layers of these shapes [N, K]; for a mixed pattern, that of its candidates.

    Raises:
        InvalidSetting: key `pattern`: it returns no (family, parameters) pair, an unknown family, or parameters that the
            family's `from_dense` does not accept.
    """
    for shape in dict.fromkeys(shapes):
        for own, level in pattern.choices(shape, sparsity):
            wrong = _complaint(own.storage(shape, level))
            if wrong is not None:
                families = ", ".join(FORMATS)
                allowed = f"its storage names {wrong}, for a layer of {list(shape)}; families are {families}"
                raise InvalidSetting("pattern", own.name, allowed)


def _complaint(named: object) -> str | None:
    """What is wrong with the value that `storage` returned; None if nothing."""
    family, parameters = named if isinstance(named, tuple | list) and len(named) == 2 else (None, None)
    if not isinstance(family, str) or not isinstance(parameters, Mapping):
        return f"{named!r}, not a family and its parameters as in ('csr', {{}})"
    if family not in FORMATS:
        return f"{family!r}, which is no storage family"
    try:
        inspect.signature(FORMATS[family].from_dense).bind("weight", "mask", **parameters)
    except TypeError as error:
        return f"({family!r}, {parameters}), whose from_dense says: {error}"
    return None
