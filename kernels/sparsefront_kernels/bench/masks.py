"""Where the masks of gathered weights come from: drawn here at random, or made by a function that is named at run time."""

import importlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from sparsefront_kernels.bench.weights import RANDOM_TILES

PATTERN = "pattern"  # the distribution whose masks a named function makes
DISTRIBUTIONS = (*RANDOM_TILES, PATTERN)


@dataclass(frozen=True)
class MaskedWeight:
    """A weight and its mask.

    Args:
        weight: float [N, K]; what the mask prunes may have any value.
        mask: bool [N, K] on the same device, True = keep.
        storage: keyword arguments of `GatheredFormat.from_dense` besides.
        compact: whether pruned outputs are left out of Y, as between two products of a network; False: they are zeros in Y.
    """

    weight: Tensor
    mask: Tensor
    storage: dict[str, Any]
    compact: bool = False


class MaskSource(Protocol):
    """Masks of one pattern with all its settings.

    `pattern` is its name and `settings` all that decides its masks besides shape, granularity and sparsity, as "key=value"
    separated by blanks: both are columns of the results.
    """

    @property
    def pattern(self) -> str: ...

    @property
    def settings(self) -> str: ...

    def draw(self, n: int, k: int, sparsity: float, device: torch.device) -> MaskedWeight:
        """A weight [n, k] of this fraction of zeros, as near as the pattern comes to it."""
        ...


@dataclass(frozen=True)
class RandomTiles:
    """Normally distributed weights; tiles keep random inputs, as many as `weights.RANDOM_TILES` says, and all outputs."""

    distribution: str
    granularity: int
    settings: str = ""

    @property
    def pattern(self) -> str:
        return {"equal": "vector_wise", "uneven": "tile_wise"}[self.distribution]

    def draw(self, n: int, k: int, sparsity: float, device: torch.device) -> MaskedWeight:
        mask = RANDOM_TILES[self.distribution](n, k, self.granularity, sparsity, device)
        storage = {"tile": self.granularity, "drop_empty_outputs": False}
        return MaskedWeight(torch.randn(n, k, device=device), mask, storage)


@dataclass(frozen=True)
class Masks:
    """The masks that a run asks for.

    Args:
        function: (granularity, **settings) -> MaskSource, for the distribution `PATTERN`; None where it is not asked for.
        settings: of the function.
    """

    function: Callable[..., MaskSource] | None = None
    settings: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def named(cls, name: str | None, settings: dict[str, Any]) -> "Masks":
        """Masks of a function "module:function", which is imported.

        Raises:
            ValueError: no such module or function, or settings without a function.
        """
        if name is None:
            if settings:
                raise ValueError("--mask-settings are those of --masks module:function, which is not given")
            return cls()
        module, _, function = name.partition(":")
        try:
            found = getattr(importlib.import_module(module), function)
        except (ImportError, ValueError, AttributeError) as error:
            raise ValueError(f"--masks {name}: not a function as module:function ({error})") from error
        return cls(found, settings)

    def source(self, distribution: str, granularity: int) -> MaskSource:
        """The masks of a distribution of `DISTRIBUTIONS` with this granularity.

        Raises:
            ValueError: the distribution `PATTERN` without a function, or settings that the function does not take.
        """
        if distribution != PATTERN:
            return RandomTiles(distribution, granularity)
        if self.function is None:
            raise ValueError(f"distribution {PATTERN} needs --masks module:function, which makes them")
        try:
            inspect.signature(self.function).bind(granularity, **self.settings)
        except TypeError as error:
            raise ValueError(f"--mask-settings: {error}") from error
        return self.function(granularity, **self.settings)


def setting(text: str) -> tuple[str, Any]:
    """A text key=value as key and value: true, false, null, a whole number, a decimal number, or else text.

    Raises:
        ValueError: no key or no value.
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
