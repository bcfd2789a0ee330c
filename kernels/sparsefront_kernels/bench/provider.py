"""Providers: ways to compute a product, checked before they are timed."""

from collections.abc import Callable
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor

from sparsefront_kernels.bench.correctness import TOLERANCE, Reference, poisoned_memory
from sparsefront_kernels.bench.problems import Setting
from sparsefront_kernels.bench.timing import Latency, copies_for, time_calls
from sparsefront_kernels.problem import Y_FEATURE_MAJOR

Call = Callable[[], Tensor]


@dataclass(frozen=True)
class Provider:
    """One kernel on one problem, as timed by the benchmark.

    Args:
        family, kernel: storage family and kernel, as in the results.
        pattern, granularity, distribution: of its weight; granularity 0 if not applicable.
        dtype_name: fp16, bf16, fp32 or tf32; determines the tolerance.
        layout: of X and Y, in `problem.LAYOUTS`; any change of layout that it needs is timed.
        sparsity: actual one of the weight.
        operand_bytes: of weight, indices, X and Y.
        weight_bytes: of weight and indices.
        make: index of a copy → a call on that copy of the operands, which writes all of a new Y.
        reference: of Y.
        outputs: number of outputs in a call's Y if fewer than N; None: N.
        mask_settings: of the mask's pattern; empty for random masks.
        whole: a call's Y → Y in its layout, for kernels that omit or reorder outputs; used by the check only, not timed.
    """

    family: str
    kernel: str
    pattern: str
    granularity: int
    distribution: str
    dtype_name: str
    layout: str
    sparsity: float
    operand_bytes: int
    weight_bytes: int
    make: Callable[[int], Call]
    reference: Reference
    outputs: int | None = None
    mask_settings: str = ""
    whole: Callable[[Tensor], Tensor] = lambda y: y
    _calls: list[Call] = field(init=False, default_factory=list)

    def as_rows(self, y: Tensor) -> Tensor:
        """Convert a call's Y to [M, N]."""
        return y.t() if self.layout in Y_FEATURE_MAJOR else y

    def calls(self, count: int) -> list[Call]:
        """Calls with separate operands, cached."""
        self._calls.extend(self.make(copy) for copy in range(len(self._calls), count))
        return self._calls[:count]


def provider_of(setting: Setting, *, weight_bytes: int, **others: Any) -> Provider:
    """A provider in a setting's dtype, whose operands are the weight, X and Y."""
    operand_bytes = weight_bytes + setting.activation_bytes
    return Provider(dtype_name=setting.dtype_name, operand_bytes=operand_bytes, weight_bytes=weight_bytes, **others)


@dataclass(frozen=True)
class Measured:
    """A provider's error against float64, and its latency if the error is within tolerance."""

    relative_error: float
    correct: bool
    latency: Latency | None


def measure(provider: Provider, *, samples: int) -> Measured:
    """Check the provider on poisoned memory, and time it if it is correct."""
    error = checked(provider)
    if error > TOLERANCE[provider.dtype_name]:
        return Measured(error, False, None)
    l2_bytes = torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size
    calls = provider.calls(copies_for(provider.operand_bytes, l2_bytes))
    return Measured(error, True, time_calls(calls, samples=samples))


def checked(provider: Provider) -> float:
    """The relative error of one call on poisoned memory."""
    (call,) = provider.calls(1)
    with poisoned_memory():
        y = call()
    return provider.reference.error(provider.as_rows(provider.whole(y)))


def copied(value: Any) -> Any:
    """Clone every tensor in a value, inside dataclasses, tuples and lists."""
    if isinstance(value, Tensor):
        return value.clone()
    if is_dataclass(value) and not isinstance(value, type):
        parts = {part.name: getattr(value, part.name) for part in fields(value) if part.init}
        return replace(value, **{name: copied(part) for name, part in parts.items()})
    if type(value) in (tuple, list):
        return type(value)(map(copied, value))
    return value


def numbered(value: Any) -> Callable[[int], Any]:
    """Index → a cached copy of the value in separate memory; 0 is the value itself."""
    made = [value]

    def number(copy: int) -> Any:
        made.extend(copied(value) for _ in range(len(made), copy + 1))
        return made[copy]

    return number
