"""Graphs of equal blocks, made once: exporting a block takes up to a second, and many tests ask for the same ones."""

import pickle
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sparsefront.inference.fusion import fused, prepared_block
from sparsefront.inference.fusion.capture import Captured


def capture_equal_blocks_once(patch: pytest.MonkeyPatch) -> None:
    """From now on a block that is built, called and exported as one before it gets the graph of that one."""
    capture = prepared_block.capture
    known: dict[Hashable, Captured] = {}

    def capture_once(bare: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Captured:
        try:
            key = _content(bare), _call(args, kwargs), _modes()
        except (pickle.PicklingError, AttributeError, TypeError):  # it holds what has no content to compare
            return capture(bare, args, kwargs)
        if key not in known:
            known[key] = capture(bare, args, kwargs)
        return known[key]

    for user in (prepared_block, fused):
        patch.setattr(user, "capture", capture_once)


def _content(bare: nn.Module) -> Hashable:
    """All that a block without weights holds, and what its parts do, which a test may have replaced."""
    parts: list[Callable] = [type(part).forward for part in bare.modules()]
    return pickle.dumps(bare), tuple(parts)


def _call(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Hashable:
    return _value(tuple(args)), tuple((name, _value(value)) for name, value in sorted(kwargs.items()))


def _value(value: Any) -> Hashable:
    if isinstance(value, tuple | list):
        return type(value), tuple(map(_value, value))
    return (tuple(value.shape), value.dtype) if isinstance(value, Tensor) else (type(value), value)


def _modes() -> Hashable:
    return (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.is_autocast_enabled("cuda"),
        torch.get_default_dtype(),
        torch.backends.cuda.flash_sdp_enabled(),
        torch.backends.cuda.math_sdp_enabled(),
        torch.backends.cuda.mem_efficient_sdp_enabled(),
    )
