"""Seeing how modules are called, and what they return, while a network runs."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle


@contextmanager
def before_forward(
    modules: Mapping[str, nn.Module], see: Callable[[str, tuple[Any, ...], dict[str, Any]], None]
) -> Iterator[None]:
    """While open, `see(name, args, kwargs)` is called before every forward of these modules, with what they are given."""

    def hook(name: str, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        see(name, args, kwargs)

    with _removed(
        module.register_forward_pre_hook(partial(hook, name), with_kwargs=True) for name, module in modules.items()
    ):
        yield


@contextmanager
def after_forward(
    modules: Mapping[str, nn.Module], see: Callable[[str, tuple[Any, ...], dict[str, Any], Any], None]
) -> Iterator[None]:
    """While open, `see(name, args, kwargs, output)` is called after every forward of these modules."""

    def hook(name: str, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        see(name, args, kwargs, output)

    with _removed(
        module.register_forward_hook(partial(hook, name), with_kwargs=True) for name, module in modules.items()
    ):
        yield


def first_argument(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Tensor:
    """The tensor that a layer with one input is called with, by position or by name."""
    return args[0] if args else next(iter(kwargs.values()))


@contextmanager
def _removed(handles: Iterable[RemovableHandle]) -> Iterator[None]:
    held = list(handles)
    try:
        yield
    finally:
        for handle in held:
            handle.remove()
