"""The product that each layer is really asked for, the batch that is timed, and the least time that a product can take."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cache
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
from sparsefront_kernels import Problem
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from sparsefront.gpu import alone
from sparsefront.measure.accuracy import cast_inputs
from sparsefront.measure.correctness import floating_tensors
from sparsefront.measure.timers import cuda_ms
from sparsefront.networks import after_forward, first_argument, layer_weight


@dataclass(frozen=True)
class LayerInput:
    """What reaches a layer in one forward.

    Args:
        problem: M, K, N, dtype and device; M = product of a Linear's leading dims, or output pixels of a convolution.
        input_shape: of the tensor that the module is called with.
    """

    problem: Problem
    input_shape: tuple[int, ...]


def observe_problems(net: nn.Module, inputs: dict[str, Tensor], layers: Iterable[str]) -> dict[str, LayerInput]:
    """Run the net once and note what its layers receive.

    Args:
        net: in eval mode, on the inputs' device and in the dtype that will be measured.
        inputs: keyword arguments of the net.
        layers: names of Linear and Conv2d modules.
    Returns:
        layer -> its largest call in this forward (a shared layer may be called more than once); a layer that is not
        called is absent.
    """
    seen: dict[str, LayerInput] = {}
    modules = {name: net.get_submodule(name) for name in layers}

    def note(name: str, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        received, weight = first_argument(args, kwargs), layer_weight(modules[name])
        n, k = weight.shape[0], weight[0].numel()
        m = floating_tensors(output)[0].numel() // n  # a subclass may give more beside its product
        if name not in seen or m > seen[name].problem.m:
            problem = Problem(m=m, k=k, n=n, dtype=received.dtype, device=received.device)
            seen[name] = LayerInput(problem, tuple(received.shape))

    with after_forward(modules, note), torch.inference_mode():
        net(**inputs)
    return seen


def theoretical_dense_flops(problem: Problem) -> int:
    """2 * M * K * N of Y[M, N] = X[M, K] W[N, K]^T; the bias is not counted. Computed, never measured."""
    return 2 * problem.m * problem.k * problem.n


# Products with the weights of layers that are not called: another module reads them, as `nn.MultiheadAttention` does.

aten = torch.ops.aten
PRODUCTS = {
    aten.linear,
    aten.matmul,
    aten.mm,
    aten.addmm,
    aten.bmm,
    aten.conv2d,
    aten.convolution,
    aten._native_multi_head_attention,
}


class UncalledLayers(TorchDispatchMode):
    """While entered, notes the products with the weights of some layers.

    Args:
        net: whose forward runs meanwhile.
        layers: names of Linear and Conv2d modules that `observe_problems` has seen no call of.
    Attributes:
        problems: layer -> its largest product; a layer whose weight is in none, or only after a cast, is absent.
    """

    def __init__(self, net: nn.Module, layers: Iterable[str]) -> None:
        super().__init__()
        weights = {name: layer_weight(net.get_submodule(name)) for name in layers}
        self._weights = {weight.untyped_storage().data_ptr(): (name, weight) for name, weight in weights.items()}
        self.problems: dict[str, Problem] = {}

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        output = function(*args, **(kwargs or {}))
        if function.overloadpacket in PRODUCTS:
            for read in (arg.untyped_storage().data_ptr() for arg in args if isinstance(arg, Tensor)):
                if read in self._weights:
                    self._note(*self._weights[read], output if isinstance(output, Tensor) else output[0])
        return output

    def _note(self, name: str, weight: Tensor, output: Tensor) -> None:
        n, k = weight.shape[0], weight[0].numel()
        m = output.numel() // n
        if name not in self.problems or m > self.problems[name].m:
            self.problems[name] = Problem(m=m, k=k, n=n, dtype=weight.dtype, device=weight.device)


# The batch that is timed: real samples, brought to the size that was asked for.

TOKENS = ("input_ids", "attention_mask", "token_type_ids")  # [batch, tokens]


def timed_inputs(
    task: Any,
    batches: Iterable[dict[str, Tensor]],
    *,
    batch_size: int,
    sequence_length: int | None,
    device: torch.device,
    dtype: torch.dtype,
) -> dict[str, Tensor]:
    """Keyword arguments of the net for one timed forward.

    Samples are taken from the loader in order and repeated where there are too few; tokens are cut, or repeated from
    the start of the sample, to `sequence_length`. Real values matter: a GPU multiplies zeros faster than data.

    Args:
        task: gives net_inputs(batch).
        batches: a loader, or any iterable of batches; batches of different token counts are brought to the first's.
        sequence_length: tokens per sample; None = as the loader gives them. Ignored for images.
    Returns:
        name -> tensor with `batch_size` rows on `device`, floating ones in `dtype`.
    Raises:
        ValueError: no samples.
    """
    collected: list[dict[str, Tensor]] = []
    rows = 0
    for batch in batches:
        inputs = dict(task.net_inputs(batch))
        length = sequence_length or _tokens((collected or [inputs])[0])
        collected.append({name: _to_length(name, value, length) for name, value in inputs.items()})
        rows += len(next(iter(inputs.values())))
        if rows >= batch_size:
            break
    if rows == 0:
        raise ValueError("there is no sample to time the network on")
    rotation = torch.arange(batch_size) % rows
    together = {name: torch.cat([part[name] for part in collected])[rotation] for name in collected[0]}
    return cast_inputs(together, device=device, dtype=dtype)


LENGTH_MULTIPLE = 16
"""Lengths of batches are rounded up to it, so that few lengths are timed; matrix units work on eighths and sixteenths."""


@dataclass(frozen=True)
class SameSize:
    """The batches of a loader that have one size.

    Args:
        inputs: keyword arguments of the net, of the first of them: name -> tensor with `rows` rows.
        batches: how many there are.
    """

    inputs: dict[str, Tensor]
    batches: int


def batches_by_size(
    task: Any,
    batches: Iterable[dict[str, Tensor]],
    *,
    longest: int | None,
    device: torch.device,
    dtype: torch.dtype,
) -> list[SameSize]:
    """Batches of text by their size, rows and tokens, in the order in which sizes are met.

    A batch has as many tokens as its longest row, rounded up to LENGTH_MULTIPLE but at most `longest`; what pads is masked.
    The last batch of a loader may have fewer rows: it is a size of its own.

    Args:
        task: gives net_inputs(batch).
        batches: a loader, or any iterable of batches, whose rows are as the network is evaluated on them.
        longest: the most tokens that the data gives; None: as many as it likes.
    Raises:
        ValueError: no batch.
    """
    found: dict[tuple[int, int], SameSize] = {}
    for batch in batches:
        inputs = dict(task.net_inputs(batch))
        length = _rounded_length(inputs, longest)
        size = len(next(iter(inputs.values()))), length
        if size in found:
            found[size] = replace(found[size], batches=found[size].batches + 1)
            continue
        padded = {name: _padded(value, length) if name in TOKENS else value for name, value in inputs.items()}
        found[size] = SameSize(cast_inputs(padded, device=device, dtype=dtype), 1)
    if not found:
        raise ValueError("there is no batch to time the network on")
    return list(found.values())


def _rounded_length(inputs: dict[str, Tensor], longest: int | None) -> int:
    mask, width = inputs.get("attention_mask"), _tokens(inputs)
    own = width if mask is None else int(mask.sum(1).max())
    rounded = -(-max(1, own or 0) // LENGTH_MULTIPLE) * LENGTH_MULTIPLE
    return rounded if longest is None else min(rounded, longest)


def _padded(value: Tensor, length: int) -> Tensor:
    """Cut, or padded with zeros, to `length` tokens: token 0 is in every vocabulary, and its attention mask is 0."""
    return F.pad(value[:, :length], (0, max(0, length - value.shape[1])))


def _tokens(inputs: dict[str, Tensor]) -> int | None:
    return next((inputs[name].shape[1] for name in TOKENS if name in inputs), None)


def _to_length(name: str, value: Tensor, length: int | None) -> Tensor:
    if name not in TOKENS or length is None:
        return value
    return value[:, torch.arange(length) % value.shape[1]]


# The least time that a product can take on the GPU at hand, from two rates measured there.

COPY_BYTES = 1 << 30
GEMM_SIDE = 8192
WARMUP, SAMPLES = 3, 10


@dataclass(frozen=True)
class MeasuredRates:
    """What this GPU reached: a device-to-device copy, counting bytes read and written, and a large dense product."""

    copy_gb_per_s: float
    dense_tflop_per_s: float


def measured_rates(device: torch.device, dtype: torch.dtype) -> MeasuredRates | None:
    """Both rates, measured once per process, device and dtype; None on a CPU, where kernels are references.

    The product runs under torch's current TF32 setting, as the network does.
    """
    if device.type != "cuda":
        return None
    index = device.index if device.index is not None else torch.cuda.current_device()
    return _measure(torch.device("cuda", index), dtype)


@cache
def _measure(device: torch.device, dtype: torch.dtype) -> MeasuredRates:
    with alone(device):
        return MeasuredRates(copy_gb_per_s=_copy_rate(device), dense_tflop_per_s=_dense_rate(device, dtype))


def _copy_rate(device: torch.device) -> float:
    size = min(COPY_BYTES, torch.cuda.mem_get_info(device)[0] // 4)
    source = torch.ones(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * size / _median_ms(lambda: target.copy_(source), device) / 1e6


def _dense_rate(device: torch.device, dtype: torch.dtype) -> float:
    left, right = (torch.randn(GEMM_SIDE, GEMM_SIDE, device=device, dtype=dtype) for _ in range(2))
    product = torch.empty_like(left)
    return 2 * GEMM_SIDE**3 / _median_ms(lambda: torch.mm(left, right.t(), out=product), device) / 1e9


def roofline_bound_us(problem: Problem, *, density: float, weight_bytes: int, rates: MeasuredRates) -> float:
    """max(2*M*K*N*density / dense rate, bytes of weights, X and Y / copy rate), in microseconds.

    Args:
        density: fraction of weights kept.
        weight_bytes: values and indices as stored.
    """
    compute_us = 2 * problem.m * problem.k * problem.n * density / (rates.dense_tflop_per_s * 1e6)
    moved = weight_bytes + problem.m * (problem.k + problem.n) * problem.dtype.itemsize
    return max(compute_us, moved / (rates.copy_gb_per_s * 1e3))


def roofline_fraction(
    problem: Problem, *, latency_us: float, density: float, weight_bytes: int, rates: MeasuredRates
) -> float:
    """Roofline bound / measured: 1 is the limit. A layer that runs dense has its own bound, with density 1."""
    return roofline_bound_us(problem, density=density, weight_bytes=weight_bytes, rates=rates) / latency_us


def _median_ms(function: Callable[[], object], device: torch.device) -> float:
    """Device time of a long-running function; events around it, since milliseconds dwarf a launch."""
    return median([cuda_ms(function, device) for _ in range(WARMUP + SAMPLES)][WARMUP:])
