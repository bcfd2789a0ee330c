"""Sources of masks for sparse weights: random, by family, or from a function named at run time."""

import importlib
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from sparsefront_kernels.bench.correctness import Reference
from sparsefront_kernels.bench.problems import Setting
from sparsefront_kernels.format import SparseFormat, zero_where_pruned
from sparsefront_kernels.gathered.format import GatheredFormat
from sparsefront_kernels.packing import FORMATS

PATTERN = "pattern"  # the distribution of masks from a named function

Storage = dict[str, dict[str, Any]]  # family that can store a mask -> keyword arguments of its `from_dense`


@dataclass(frozen=True)
class MaskedWeight:
    """A weight and its mask.

    Args:
        weight: float [N, K]; pruned entries may have any value.
        mask: bool [N, K] on the same device, True = keep.
        storage: the families that can store it.
        compact: omit pruned outputs from Y, as between two products of a network; False: they are zeros in Y. Only gathered
            storage supports it.
    """

    weight: Tensor
    mask: Tensor
    storage: Storage
    compact: bool = False


class MaskSource(Protocol):
    """Masks of one pattern with all its settings.

    `pattern` is its name and `settings` everything else that determines its masks besides shape, granularity and sparsity, as
    "key=value" separated by spaces: both are columns of the results.
    """

    @property
    def pattern(self) -> str: ...

    @property
    def settings(self) -> str: ...

    def draw(self, n: int, k: int, sparsity: float, device: torch.device) -> MaskedWeight:
        """A weight [n, k] with this fraction of zeros, as close as the pattern allows.

        Raises:
            ValueError: the pattern cannot divide this shape.
        """
        ...


@dataclass(frozen=True)
class RandomMasks:
    """Normally distributed weights with masks that do not depend on them.

    Args:
        pattern, settings: as in `MaskSource`.
        mask: (n, k, sparsity, device) -> bool [n, k].
        storage: the families that can store it, or sparsity -> these.
    """

    pattern: str
    mask: Callable[[int, int, float, torch.device], Tensor]
    storage: Storage | Callable[[float], Storage]
    settings: str = ""

    def draw(self, n: int, k: int, sparsity: float, device: torch.device) -> MaskedWeight:
        """See `MaskSource`."""
        mask = self.mask(n, k, sparsity, device)
        storage = self.storage(sparsity) if callable(self.storage) else self.storage
        return MaskedWeight(torch.randn(n, k, device=device), mask, storage)


@dataclass(frozen=True, eq=False)
class FamilyMasks:
    """Benchmark settings of a storage family; `families.py` has all of them.

    Args:
        family: its name.
        distributions: of its random masks, default first.
        granularity: the default.
        source: (distribution, granularity, **settings) -> MaskSource, for these distributions; the family can store its masks.
    """

    family: str
    distributions: tuple[str, ...]
    granularity: int
    source: Callable[..., MaskSource]


@dataclass(frozen=True)
class Masks:
    """The masks of a run.

    Args:
        family: whose random masks are used, unless the distribution is `PATTERN`.
        function: (granularity, **settings) -> MaskSource, for the distribution `PATTERN`; None if not requested.
        settings: of the mask source.
    """

    family: FamilyMasks
    function: Callable[..., MaskSource] | None = None
    settings: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def named(cls, family: FamilyMasks, name: str | None, settings: dict[str, Any]) -> "Masks":
        """Masks of a family, or of a function "module:function", which is imported.

        Raises:
            ValueError: no such module or function.
        """
        if name is None:
            return cls(family, None, settings)
        module, _, function = name.partition(":")
        try:
            mask_function = getattr(importlib.import_module(module), function)
        except (ImportError, ValueError, AttributeError) as error:
            raise ValueError(f"--masks {name}: not a function as module:function ({error})") from error
        return cls(family, mask_function, settings)

    def source(self, distribution: str, granularity: int) -> MaskSource:
        """The mask source of a distribution, `PATTERN` or one of the family's, with this granularity.

        Raises:
            ValueError: the distribution `PATTERN` without a function, an unknown distribution, or settings that the source does
                not accept.
        """
        if distribution == PATTERN:
            if self.function is None:
                raise ValueError(f"distribution {PATTERN} needs --masks module:function, which makes them")
            return _called(self.function, (granularity,), self.settings)
        if distribution not in self.family.distributions:
            there = ", ".join((*self.family.distributions, PATTERN))
            raise ValueError(f"distribution {distribution}: those of {self.family.family} are {there}")
        return _called(self.family.source, (distribution, granularity), self.settings)


def _called(function: Callable[..., MaskSource], given: tuple[Any, ...], settings: dict[str, Any]) -> MaskSource:
    try:
        inspect.signature(function).bind(*given, **settings)
    except TypeError as error:
        raise ValueError(f"--mask-settings: {error}") from error
    return function(*given, **settings)


def setting(text: str) -> tuple[str, Any]:
    """Parse key=value: true, false, null, an integer, a float, or else a string.

    Raises:
        ValueError: key or value is missing.
    """
    key, _, value = text.partition("=")
    if not key or not value:
        raise ValueError(f"{text!r} is not key=value")
    words = {"true": True, "false": False, "null": None}
    if value in words:
        return key, words[value]
    for number in (int, float):
        try:
            return key, number(value)
        except ValueError:
            continue
    return key, value


@dataclass(frozen=True)
class DrawnWeight:
    """A weight with a setting's shape and dtype.

    Args:
        pattern, granularity, distribution, mask_settings: as in the results.
        setting: of its product; n counts only stored outputs if the weight is compact.
        stored: family -> the weight.
        reference: of a product with it.
        sparsity: actual fraction of zeros of the mask, including pruned outputs.
    """

    pattern: str
    granularity: int
    distribution: str
    mask_settings: str
    setting: Setting
    stored: dict[str, SparseFormat]
    reference: Reference
    sparsity: float

    @property
    def columns(self) -> dict[str, Any]:
        """What a provider of a product with it has of it."""
        names = ("pattern", "granularity", "distribution", "mask_settings", "reference", "sparsity")
        return {name: getattr(self, name) for name in names}


def drawn_weight(
    setting: Setting, source: MaskSource, *, granularity: int, distribution: str, families: Sequence[str]
) -> DrawnWeight:
    """Draw a weight from a mask source, in the setting's dtype.

    Args:
        families: to store it in, if they can.
    Raises:
        ValueError: no family can store it, or the mask cannot be made.
    """
    shape = setting.shape
    drawn = source.draw(shape.n, shape.k, setting.sparsity, setting.device)
    held = {family: parameters for family, parameters in drawn.storage.items() if family in families}
    if not held:
        raise ValueError(f"{source.pattern} is stored as {', '.join(drawn.storage)}, not as {', '.join(families)}")
    weight = zero_where_pruned(drawn.weight.to(setting.dtype), drawn.mask)
    stored: dict[str, SparseFormat] = {
        family: FORMATS[family].from_dense(weight, drawn.mask, **parameters) for family, parameters in held.items()
    }
    sparsity = 1 - int(drawn.mask.sum()) / weight.numel()
    if drawn.compact:
        tiles = stored.get(GatheredFormat.family)
        if not isinstance(tiles, GatheredFormat) or len(stored) > 1:
            raise ValueError(f"compact products are of gathered weights alone, not of {', '.join(stored)}")
        weight = weight[tiles.output_index.long()]
        setting, tiles = _compact(setting, tiles)
        stored = {GatheredFormat.family: tiles}
    reference = setting.reference(weight)
    return DrawnWeight(source.pattern, granularity, distribution, source.settings, setting, stored, reference, sparsity)


def _compact(setting: Setting, stored: GatheredFormat) -> tuple[Setting, GatheredFormat]:
    """The same tiles for a product with only the stored outputs, in storage order."""
    outputs = len(stored.output_index)
    order = torch.arange(outputs, dtype=torch.int32, device=stored.device)
    smaller = replace(setting, shape=replace(setting.shape, n=outputs))
    return smaller, replace(stored, shape=(outputs, setting.shape.k), output_index=order)
