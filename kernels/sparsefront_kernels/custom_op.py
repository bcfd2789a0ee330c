"""Custom ops `torch.ops.sparsefront.<name>`, each a single node in eager, compiled and CUDA graphs.

Like `torch.library.custom_op`, whose first call imports Dynamo, which takes seconds, and whose calls take 22 us more of Python.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch

NAMESPACE = "sparsefront"
_LIBRARY = torch.library.Library(NAMESPACE, "FRAGMENT")


def is_fused_later() -> bool:
    """Whether a compiler that fuses pointwise operators traces this call; torch.export keeps what it traces, kernels included."""
    return torch.compiler.is_compiling() and not torch.compiler.is_exporting()


class CustomOp:
    """An op that returns none of its arguments; one that mutates some, as its schema then says, has no gradients.

    Args:
        name: without namespace.
        run: the implementation for all devices.
        schema: "(Tensor x) -> Tensor"; None: inferred from run's annotations.
    """

    def __init__(self, name: str, run: Callable[..., Any], schema: str | None = None) -> None:
        functools.update_wrapper(self, run)
        self._qualified = f"{NAMESPACE}::{name}"
        self._backward: Callable[..., Any] | None = None
        self._setup_context: Callable[..., None] | None = None
        schema = torch.library.infer_schema(run, mutates_args=()) if schema is None else schema
        _LIBRARY.define(f"{name}{schema}", tags=torch.Tag.pt2_compliant_tag)
        _LIBRARY.impl(name, run, "CompositeExplicitAutograd")
        if "!" not in schema:
            torch.library.register_autograd(
                self._qualified, self._gradients, setup_context=self._keep_for_gradients, lib=_LIBRARY
            )
        self.overload = getattr(getattr(torch.ops, NAMESPACE), name).default

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.overload(*args, **kwargs)

    def register_fake(self, fake: Callable[..., Any]) -> Callable[..., Any]:
        """Register a function that returns empty outputs, for compiled graphs."""
        torch.library.register_fake(self._qualified, fake, lib=_LIBRARY)
        return fake

    def register_autograd(
        self, backward: Callable[..., Any], *, setup_context: Callable[..., None] | None = None
    ) -> None:
        """Like the method of `torch.library`."""
        self._backward, self._setup_context = backward, setup_context

    def _keep_for_gradients(self, ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        if self._setup_context is not None:
            self._setup_context(ctx=ctx, inputs=inputs, output=output)

    def _gradients(self, ctx: Any, *gradients: Any) -> Any:
        if self._backward is None:
            raise RuntimeError(f"{self._qualified} has no gradient")
        return self._backward(ctx, *gradients)


def custom_op(name: str, schema: str | None = None) -> Callable[[Callable[..., Any]], CustomOp]:
    """Decorator that makes a `CustomOp` from a function."""
    return lambda run: CustomOp(name, run, schema)
