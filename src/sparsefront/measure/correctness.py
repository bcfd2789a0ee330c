"""Relative error between outputs, its limits, and the correctness check of single layers."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import fields, is_dataclass
from typing import Any

import torch
import torch.nn.functional as F
from sparsefront_kernels.epilogue import ACTIVATIONS
from sparsefront_kernels.sparse_layer import SparseLayer
from torch import Tensor, nn

from sparsefront.errors import InvalidSetting
from sparsefront.measure.search_time import CHECKS, spending

# Relative errors and their limits.

# One product: a kernel against the fp64 product of the same rounded weights. fp16 and bf16 allow for rounding of the
# output and fp32 accumulation; fp32 only for another order of summation.
PRODUCT_ERROR_LIMIT = {torch.float64: 1e-12, torch.float32: 4e-6, torch.float16: 1e-3, torch.bfloat16: 5e-3}
SEPARATE = 2.0  # factor of the limit for an epilogue, which rounds again
TF32_ERROR_LIMIT = 1e-3  # an fp32 product on tensor cores that read 10 bits of mantissa

# A whole network, one execution against another: rounding accumulates over many layers, wrong results are far off.
NETWORK_ERROR_LIMIT = {torch.float64: 1e-6, torch.float32: 5e-3, torch.float16: 2e-2, torch.bfloat16: 1e-1}
# A low-precision network against another execution mode of itself, or its emulation. A value between two steps may be rounded
# either way, by 6 %, and later layers round the result again: a loose limit that only tells right from wrong.
LOW_PRECISION_ERROR_LIMIT = 0.3


def product_error_limit(dtype: torch.dtype) -> float:
    """The largest relative error of a correct product: the TF32 limit where PyTorch may use TF32 for float32 products."""
    # get_float32_matmul_precision fails once fp32_precision was set; fp32_precision reflects both settings
    rounded = dtype == torch.float32 and torch.backends.cuda.matmul.fp32_precision == "tf32"
    return TF32_ERROR_LIMIT if rounded else PRODUCT_ERROR_LIMIT[dtype]


def network_error_limit(net: nn.Module) -> float:
    """The largest relative error that rounding explains, by the coarsest dtype of the network's parameters."""
    dtypes = {parameter.dtype for parameter in net.parameters()}
    return max(limit for dtype, limit in NETWORK_ERROR_LIMIT.items() if dtype in dtypes)


def has_low_precision(net: nn.Module) -> bool:
    """Whether any of its layers multiplies in low precision."""
    return any(isinstance(part, SparseLayer) and part.precision != "none" for part in net.modules())


def relative_error(actual: Tensor, expected: Tensor) -> float:
    """||actual - expected|| / ||expected|| in fp64; inf where shapes differ or either holds NaN or infinity."""
    if actual.shape != expected.shape:
        return float("inf")
    actual, expected = actual.double(), expected.double()
    difference, scale = torch.linalg.vector_norm(actual - expected).item(), torch.linalg.vector_norm(expected).item()
    if difference == 0:
        return 0.0
    error = difference / scale if scale > 0 else float("inf")
    return error if error == error else float("inf")  # NaN counts as wrong


def error_of_parts(parts: Iterable[tuple[Tensor, Tensor]]) -> float:
    """`relative_error` of a result that comes in parts, each (actual, expected in fp64)."""
    difference, scale = 0.0, 0.0
    for actual, expected in parts:
        if actual.shape != expected.shape:
            return math.inf
        difference += (actual.double() - expected).square().sum().item()
        scale += expected.square().sum().item()
    if difference == 0:
        return 0.0
    error = math.sqrt(difference / scale) if scale > 0 else math.inf
    return math.inf if math.isnan(error) else error


def output_error(actual: object, expected: object) -> float:
    """The largest relative error among the floating tensors of two outputs of the same structure.

    Raises:
        InvalidSetting: there is no such tensor, so any two outputs would agree.
        ValueError: the outputs differ in their number of floating tensors.
    """
    pairs = zip(floating_tensors(actual), floating_tensors(expected), strict=True)
    return max(relative_error(one, other) for one, other in pairs)


def floating_tensors(output: object) -> list[Tensor]:
    """The floating tensors of a network's output: a tensor, a mapping (Hugging Face), a dataclass or a sequence.

    Raises:
        InvalidSetting: there is none.
    """
    tensors = _floating_tensors(output)
    if not tensors:
        needed = "must return a floating-point tensor, or a mapping, dataclass, list or tuple that holds one"
        raise InvalidSetting("net", type(output).__name__, f"{needed}: by these its outputs are compared")
    return tensors


def _floating_tensors(output: object) -> list[Tensor]:
    if isinstance(output, Tensor):
        return [output] if output.is_floating_point() else []
    if isinstance(output, Mapping):
        parts = list(output.values())
    elif is_dataclass(output):
        parts = [getattr(output, field.name) for field in fields(output)]
    else:
        parts = list(output) if isinstance(output, list | tuple) else []
    return [tensor for part in parts for tensor in _floating_tensors(part)]


CPU_ROWS = 64  # M on a CPU: references treat every row alike, and fp64 products of a whole batch take minutes
IMAGES = 16  # compared per batch: fp64 convolutions of all images would take longer than all timings
CHUNK_ELEMENTS = 1 << 25  # fp64 elements of input and output at a time: 256 MiB
ROWS_AGAIN = 16  # compared of a product that was compared whole before
_most: ContextVar[int | None] = ContextVar("_most", default=None)


@contextmanager
def assume_checked() -> Iterator[None]:
    """Inside, products are compared in a few rows, and must be finite in all: all were compared when the kernel was chosen."""
    token = _most.set(ROWS_AGAIN)
    try:
        yield
    finally:
        _most.reset(token)


def rows_to_compare(x: Tensor, most: int | None = None) -> Tensor | None:
    """At most `most` rows of x, evenly spaced, int64, fewer inside `assume_checked`; None for all of them."""
    fewest = min((limit for limit in (most, _most.get()) if limit is not None), default=len(x))
    return None if fewest >= len(x) else torch.linspace(0, len(x) - 1, fewest, device=x.device).round().long()


def error_in_chunks(y: Tensor, expected: Callable[[Any], Tensor], chunk: int, most: int | None = None) -> float:
    """Relative error of y against `expected(rows)`, `chunk` rows at a time; of few rows if `rows_to_compare` gives them, and all
    of y has to be finite then.
    """
    parts: Sequence[Any] = [slice(first, first + chunk) for first in range(0, len(y), chunk)]
    some = rows_to_compare(y, most)
    if some is not None:
        if not y.isfinite().all():
            return math.inf
        parts = some.split(chunk)
    return error_of_parts((y[part], expected(part)) for part in parts)


class CorrectnessCheck:
    """Checks layers that should compute the same as a dense one.

    A candidate is called twice on one buffer that is refilled in between, and both results are read only afterwards. This
    catches stale results and an output buffer that is returned twice. Memory for the outputs is filled with NaN before, which
    catches unwritten elements.

    A low-precision layer is compared with the product of its quantized operands.

    Args:
        layer: nn.Linear or nn.Conv2d with the masked weight, in the dtype and on the device that are measured.
        input_shape: of the layer's input in the network; shortened on a CPU.
        amax: largest absolute value of the random inputs, for a layer with a static scale; None: not scaled.
        activation: a name of the kernels' `ACTIVATIONS` that follows a Linear.
    """

    def __init__(
        self,
        layer: nn.Linear | nn.Conv2d,
        input_shape: tuple[int, ...],
        amax: float | None = None,
        activation: str = "none",
    ) -> None:
        self.layer, self.activation = layer, activation
        weight = layer.weight
        generator = torch.Generator(weight.device).manual_seed(0)
        shape = _shape_to_check(layer, input_shape)
        self._inputs = [
            scale_to_amax(torch.randn(shape, generator=generator, device=weight.device, dtype=weight.dtype), amax)
            for _ in range(2)
        ]

    @property
    def x(self) -> Tensor:
        """Random input of the checked shape; [M, K] for a Linear."""
        return self._inputs[0].clone()

    @property
    def limit(self) -> float:
        """The largest relative error that passes."""
        return product_error_limit(self.layer.weight.dtype) * (1.0 if self.activation == "none" else SEPARATE)

    @torch.inference_mode()
    def quantization_error(self, candidate: nn.Module) -> float | None:
        """Relative error against the fp64 product of the unquantized operands; None for layers that do not quantize."""
        if not has_low_precision(candidate):
            return None
        return self._distance(candidate(self._inputs[0].clone()), self._inputs[0], None)

    @torch.inference_mode()
    def error(self, candidate: nn.Module) -> float:
        """||candidate(x) - fp64 product|| / ||fp64 product||, the worse of two inputs; inf for NaN or a wrong shape.

        Of a large batch of images an evenly spaced subset is compared; all outputs have to be finite.
        """
        buffer = torch.empty_like(self._inputs[0])
        self._poison()
        outputs = []
        for x in self._inputs:
            buffer.copy_(x)
            outputs.append(candidate(buffer))
        low = candidate if isinstance(candidate, SparseLayer) and candidate.precision != "none" else None
        return max(self._distance(output, x, low) for output, x in zip(outputs, self._inputs, strict=True))

    @spending(CHECKS)
    def evaluate(self, candidate: nn.Module) -> tuple[float, str | None]:
        """The relative error and, if it exceeds the limit, the reason to reject the candidate."""
        error, limit = self.error(candidate), limit_of(candidate, self.limit)
        if error <= limit:
            return error, None
        return error, f"relative error {error:.1e} against the fp64 product, more than {limit:.0e}"

    def _distance(self, output: Tensor, x: Tensor, low: SparseLayer | None) -> float:
        """Relative error on one input; against the product of the quantized operands of `low`, if given."""
        if len(output) != len(x):
            return math.inf

        def compute_part(part: Any) -> Tensor:
            return self._compute(x[part].double()) if low is None else self._compute_quantized(low, x[part])

        chunk = max(1, CHUNK_ELEMENTS * len(x) // max(1, x.numel(), output.numel()))
        return error_in_chunks(output, compute_part, chunk, IMAGES if isinstance(self.layer, nn.Conv2d) else None)

    def _compute(self, x: Tensor) -> Tensor:
        layer = self.layer
        bias = None if layer.bias is None else layer.bias.double()
        if isinstance(layer, nn.Linear):
            return ACTIVATIONS[self.activation](F.linear(x, layer.weight.double(), bias))
        return F.conv2d(x, layer.weight.double(), bias, layer.stride, layer.padding, layer.dilation, layer.groups)

    def _compute_quantized(self, low: SparseLayer, x: Tensor) -> Tensor:
        of_x, of_w = low.multiplied(x)
        bias = None if self.layer.bias is None else self.layer.bias.double()
        return F.linear(of_x.double(), of_w.double(), bias)

    def _poison(self) -> None:
        """Leave NaN in the memory that the allocator will return next for outputs of this size."""
        spoiled = [torch.full_like(self.layer(x), math.nan) for x in self._inputs]
        del spoiled


def scale_to_amax(x: Tensor, amax: float | None) -> Tensor:
    """Scale values in place so that the largest absolute one is `amax`; None: unchanged."""
    return x if amax is None else x.mul_(amax / x.abs().amax().clamp(min=torch.finfo(x.dtype).tiny))


def limit_of(candidate: nn.Module, limit: float) -> float:
    """The limit for a candidate: low-precision kernels get at least that of bf16, since cuBLASLt accumulates in fewer bits."""
    if has_low_precision(candidate) and limit == PRODUCT_ERROR_LIMIT[torch.float16]:
        return PRODUCT_ERROR_LIMIT[torch.bfloat16]
    return limit


def _shape_to_check(layer: nn.Linear | nn.Conv2d, input_shape: tuple[int, ...]) -> tuple[int, ...]:
    on_cpu = layer.weight.device.type == "cpu"
    if isinstance(layer, nn.Conv2d):
        return (1, *input_shape[1:]) if on_cpu else input_shape
    rows = math.prod(input_shape[:-1])
    return (min(rows, CPU_ROWS) if on_cpu else rows, input_shape[-1])
