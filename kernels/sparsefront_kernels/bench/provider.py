"""A provider: one way to compute a product. It makes operands and calls, and is checked before it is timed."""

from collections.abc import Callable
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor

from sparsefront_kernels.bench.correctness import TOLERANCE, Reference, poisoned_memory
from sparsefront_kernels.bench.timing import Latency, copies_for, time_calls
from sparsefront_kernels.problem import Y_FEATURE_MAJOR

Call = Callable[[], Tensor]


@dataclass(frozen=True)
class Provider:
    """One kernel on one problem, as the benchmark times it.

    Args:
        family, kernel: storage family and kernel, as they stand in the results.
        pattern, granularity, distribution: of the weight it multiplies by; granularity 0 where it has none.
        dtype_name: fp16, bf16, fp32 or tf32: decides which error is allowed.
        layout: of X and Y, one of `problem.LAYOUTS`; any change of layout that it needs is inside its time.
        sparsity: of the weight, as it is.
        operand_bytes: of weight, indices, X and Y.
        weight_bytes: of weight and indices.
        make: number of a copy → a call on that copy of the operands, which writes all of a fresh Y.
        reference: what Y must be.
        outputs: of Y as a call gives it, where these are fewer than N; None: all of them.
        mask_settings: of the pattern that made the mask; empty where it was drawn at random.
        whole: Y as a call gives it → Y in its layout, for a kernel that leaves outputs out or in another order; done for the
            check alone, outside of its time.
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
        """Y as a call gives it → [M, N]."""
        return y.t() if self.layout in Y_FEATURE_MAJOR else y

    def calls(self, count: int) -> list[Call]:
        """Calls on operands of their own each; those made before are used again."""
        self._calls.extend(self.make(copy) for copy in range(len(self._calls), count))
        return self._calls[:count]


@dataclass(frozen=True)
class Measured:
    """A provider's error against float64, and its latency where the error is allowed."""

    relative_error: float
    correct: bool
    latency: Latency | None


def measure(provider: Provider, *, samples: int) -> Measured:
    """Check the provider on poisoned memory, and time it if it is right."""
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
    """The value with every tensor in it cloned, within dataclasses, tuples and lists."""
    if isinstance(value, Tensor):
        return value.clone()
    if is_dataclass(value) and not isinstance(value, type):
        parts = {part.name: getattr(value, part.name) for part in fields(value) if part.init}
        return replace(value, **{name: copied(part) for name, part in parts.items()})
    if type(value) in (tuple, list):
        return type(value)(map(copied, value))
    return value


def numbered(value: Any) -> Callable[[int], Any]:
    """Number → a copy of the value in memory of its own, the same one for the same number; 0 is the value itself."""
    made = [value]

    def number(copy: int) -> Any:
        made.extend(copied(value) for _ in range(len(made), copy + 1))
        return made[copy]

    return number
