"""Problem sizes of the layers, flops of all weights, the timed batch, and the roofline bound of a product."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
from sparsefront_kernels import Problem
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from sparsefront.gpu import exclusive
from sparsefront.measure.accuracy import cast_inputs
from sparsefront.measure.correctness import floating_tensors
from sparsefront.measure.timers import cuda_ms
from sparsefront.models.unpadded import MASK, count_tokens
from sparsefront.networks import after_forward, decompose, first_argument, layer_weight, storage_of


@dataclass(frozen=True)
class LayerInput:
    """A layer's input in one forward.

    Args:
        problem: M, K, N, dtype and device; M = product of a Linear's leading dims, or output pixels of a convolution.
        input_shape: of the tensor that the module is called with.
    """

    problem: Problem
    input_shape: tuple[int, ...]


def observe_problems(net: nn.Module, inputs: dict[str, Tensor], layers: Iterable[str]) -> dict[str, LayerInput]:
    """Run the net once and record the inputs of its layers.

    Args:
        net: in eval mode, on the inputs' device and in the dtype that will be measured.
        inputs: keyword arguments of the net.
        layers: names of Linear and Conv2d modules.
    Returns:
        layer -> its largest call in this forward (a shared layer may be called more than once); a layer that is not
        called is absent.
    """
    with collect_problems(net, layers) as seen, torch.inference_mode():
        net(**inputs)
    return seen


@contextmanager
def collect_problems(net: nn.Module, layers: Iterable[str]) -> Iterator[dict[str, LayerInput]]:
    """`observe_problems` of the forwards inside the context, which fill the dict."""
    seen: dict[str, LayerInput] = {}
    modules = {name: net.get_submodule(name) for name in layers}

    def note(name: str, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        received, weight = first_argument(args, kwargs), layer_weight(modules[name])
        n, k = weight.shape[0], weight[0].numel()
        m = floating_tensors(output)[0].numel() // n  # a subclass may return more than its product
        if m > (seen[name].problem.m if name in seen else 0):  # an expert may get no row
            problem = Problem(m=m, k=k, n=n, dtype=received.dtype, device=received.device)
            # nn.TransformerEncoder makes nested tensors of padded inputs, which have rows and no shape
            seen[name] = LayerInput(problem, (m, k) if received.is_nested else tuple(received.shape))

    with after_forward(modules, note):
        yield seen


def theoretical_dense_flops(problem: Problem) -> int:
    """2 * M * K * N of Y[M, N] = X[M, K] W[N, K]^T; the bias is not counted. Computed, never measured."""
    return 2 * problem.m * problem.k * problem.n


# All products with weights of a network, including modules without a kernel and parameters that are read without calling a
# layer, as in `nn.MultiheadAttention`.

aten = torch.ops.aten
RECURRENT = {aten.mkldnn_rnn_layer, aten._cudnn_rnn, aten.miopen_rnn}  # (input, weights, ...) of a whole layer
GROUPED = {aten._grouped_mm, aten._scaled_grouped_mm}


def weight_flops(net: nn.Module, inputs: dict[str, Any]) -> dict[str, int]:
    """Run the net once and count the dense flops of all products with its weights, over all calls; biases are not counted.

    Args:
        net: in eval mode, on the inputs' device.
        inputs: keyword arguments of the net.
    Returns:
        parameter (by its first name) -> 2 * M * K * N of its products; one in no product, such as an embedding, is absent.
    """
    with count_flops(net) as flops, torch.inference_mode():
        net(**inputs)
    return dict(flops)


@contextmanager
def count_flops(net: nn.Module) -> Iterator[Mapping[str, int]]:
    """`weight_flops` of the forwards inside the context, which fill the dict.

    PyTorch's attention fast path is disabled meanwhile: it is one operator that gets all weights of an encoder layer.
    """
    products, fast = WeightProducts(net.named_parameters()), torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with products:
            yield products.flops
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)


class WeightProducts(TorchDispatchMode):
    """Counts flops of products with parameters, their views, and tensors computed from parameters alone without a product:
    a cast, a concatenation, a parametrized weight.

    Args:
        parameters: (name, parameter) pairs, each parameter once.
    Attributes:
        flops: name -> flops; an operand made of several parameters splits its flops in proportion to their sizes. If both
            operands are parameters, such as a position encoding and its projection, the second one counts.
    """

    supports_higher_order_operators = True

    def __init__(self, parameters: Iterable[tuple[str, Tensor]]) -> None:
        super().__init__()
        from torch.utils.flop_counter import flop_registry  # here, since it imports Triton

        self._formulas = flop_registry
        self.flops: Counter[str] = Counter()
        self._sizes: dict[str, int] = {}
        # storage -> (elements, name) of its parameters
        self._parameters_by_storage: dict[int | None, list[tuple[range, str]]] = {}
        for name, parameter in parameters:
            if not nn.parameter.is_lazy(parameter) and (storage := storage_of(parameter)) is not None:
                self._sizes[name] = parameter.numel()
                self._parameters_by_storage.setdefault(storage, []).append((_elements(parameter), name))
        # storage -> the tensor in it (kept alive, so that the storage is not reused), and the parameters it is made of
        self._computed: dict[int | None, tuple[Tensor, set[str]]] = {}

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if not isinstance(function, torch._ops.OpOverload):  # a higher-order operator
            return function(*args, **kwargs)
        with self:
            output = decompose(function, args, kwargs)
        if output is not NotImplemented:
            return output
        output = function(*args, **kwargs)
        kind, tensors = (
            function.overloadpacket,
            [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)],
        )
        parts = [self._parameters_in(tensor) for tensor in tensors]
        if any(parts):
            self._note(kind, args, kwargs, tensors, parts, output)
        constants = [part for part in parts if part is not None]
        if not tensors or len(constants) < len(parts):
            return output
        names = set() if kind in self._formulas else set().union(*constants)
        for made in (leaf for leaf in tree_leaves(output) if isinstance(leaf, Tensor)):
            storage = storage_of(made)
            if storage is not None and storage not in map(storage_of, tensors):
                self._computed[storage] = made, names
        return output

    def _parameters_in(self, tensor: Tensor) -> set[str] | None:
        """The parameters that a tensor views or is computed from, empty for a product of them; None where it holds data."""
        storage = storage_of(tensor)
        if storage is None or not tensor.numel():
            return None
        elements = _elements(tensor)
        names = {
            name
            for own, name in self._parameters_by_storage.get(storage, ())
            if own.start < elements.stop and elements.start < own.stop
        }
        return names or self._computed.get(storage, (tensor, None))[1]

    def _note(
        self, kind: Any, args: Any, kwargs: Any, tensors: list[Tensor], parts: list[set[str] | None], output: Any
    ) -> None:
        operands = [names for tensor, names in zip(tensors, parts, strict=True) if names and tensor.dim() > 1]
        if not operands:
            return
        if kind in RECURRENT:
            rows = tensors[0].numel() // tensors[0].shape[-1]
            for name in set().union(*operands):
                self.flops[name] += 2 * rows * self._sizes[name]
            return
        if kind in GROUPED:
            product = 2 * output.numel() * args[0].shape[-1]
        elif kind in self._formulas:
            product = self._formulas[kind](*args, **kwargs, out_val=output)
        else:
            return
        total = sum(self._sizes[name] for name in operands[-1])
        for name in operands[-1]:
            self.flops[name] += product * self._sizes[name] // total


def _elements(tensor: Tensor) -> range:
    """The range of storage elements that a strided tensor spans."""
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return range(tensor.storage_offset(), tensor.storage_offset() + last + 1)


IMAGES = "x"  # [batch, channels, height, width]
TOKENS = ("input_ids", "attention_mask", "token_type_ids", "source", "source_mask", "target")  # [batch, tokens]


def make_inputs(
    task: Any,
    batches: Iterable[dict[str, Tensor]],
    *,
    batch_size: int,
    sequence_length: int | None,
    image_size: int | None = None,
    device: torch.device,
    dtype: torch.dtype,
) -> dict[str, Tensor]:
    """Keyword arguments of the net for one timed forward.

    Samples are taken from the loader in order and repeated where there are too few; tokens are cut, or repeated from
    the start of the sample, to `sequence_length`. Real values matter: a GPU multiplies zeros faster than data.

    Args:
        task: provides net_inputs(batch).
        batches: a loader, or any iterable of batches; all are brought to the token count of the first.
        sequence_length: tokens per sample; None = the loader's. Ignored for images.
        image_size: side in pixels, by interpolation; None = the loader's. Ignored for text.
    Returns:
        name -> tensor with `batch_size` rows on `device`, floating ones in `dtype`.
    Raises:
        ValueError: no samples.
    """
    collected: list[dict[str, Tensor]] = []
    rows = 0
    for batch in batches:
        inputs = dict(task.net_inputs(batch))
        length = sequence_length or tokens_of((collected or [inputs])[0])
        collected.append({name: _to_length(name, value, length) for name, value in inputs.items()})
        rows += len(next(iter(inputs.values())))
        if rows >= batch_size:
            break
    if rows == 0:
        raise ValueError("there is no sample to time the network on")
    rotation = torch.arange(batch_size) % rows
    together = {name: torch.cat([part[name] for part in collected])[rotation] for name in collected[0]}
    if image_size is not None and IMAGES in together and together[IMAGES].shape[-1] != image_size:
        size = (image_size, image_size)
        together[IMAGES] = F.interpolate(together[IMAGES], size=size, mode="bilinear", antialias=True)
    return cast_inputs(together, device=device, dtype=dtype)


LENGTH_MULTIPLE = 64
"""Batch lengths are rounded up to it, so that few lengths are timed: each is compiled for dense and sparse alike."""


@dataclass(frozen=True)
class SameSize:
    """The batches of a loader that have one size.

    Args:
        inputs: keyword arguments of the net from the first of them.
        length: tokens of a row; without padding on average.
        batches: their number.
    """

    inputs: dict[str, Tensor]
    length: int
    batches: int = 1


def batches_by_size(
    task: Any,
    batches: Iterable[dict[str, Tensor]],
    *,
    longest: int | None,
    device: torch.device,
    dtype: torch.dtype,
    unpadded: bool = False,
) -> list[SameSize]:
    """Group batches of text by size (rows, tokens), in order of first appearance.

    A batch has as many tokens as its longest row, rounded up to LENGTH_MULTIPLE but at most `longest`; padding is masked. In
    translation, source and target both get the longer length. A smaller last batch is a size of its own.

    Args:
        task: provides net_inputs(batch).
        batches: a loader, or any iterable of batches, as the network is evaluated on them.
        longest: upper bound on tokens; None: no bound.
        unpadded: the size is the number of tokens that an unpadded network computes.
    Raises:
        ValueError: no batch.
    """
    by_size: dict[tuple[int, int], SameSize] = {}
    for batch in batches:
        inputs = dict(task.net_inputs(batch))
        length = _round_length(inputs, longest)
        rows = len(next(iter(inputs.values())))
        average = (
            count_tokens(rows, int(inputs[MASK].count_nonzero())) // rows if unpadded and MASK in inputs else length
        )
        size = rows, average
        if size in by_size:
            by_size[size] = replace(by_size[size], batches=by_size[size].batches + 1)
            continue
        padded = {name: _pad(value, length) if name in TOKENS else value for name, value in inputs.items()}
        by_size[size] = SameSize(cast_inputs(padded, device=device, dtype=dtype), average)
    if not by_size:
        raise ValueError("there is no batch to time the network on")
    return list(by_size.values())


def size_text(point: Mapping[str, Any]) -> str:
    """Name of an entry of `curve` in samples.json: "32x128", or "32" for images."""
    length = point.get("sequence_length")
    return f"{point.get('batch_size')}x{length}" if length else f"{point.get('batch_size')}"


def dataset_size_text(entry: Mapping[str, Any]) -> str:
    """Name of an entry of `dataset_lengths` in samples.json: "32x48 dataset"."""
    return f"{size_text(entry)} dataset"


def _round_length(inputs: dict[str, Tensor], longest: int | None) -> int:
    mask, widths = inputs.get("attention_mask"), [inputs[name].shape[1] for name in TOKENS if name in inputs]
    own = max(widths, default=0) if mask is None else int(mask.sum(1).max())
    rounded = -(-max(1, own) // LENGTH_MULTIPLE) * LENGTH_MULTIPLE
    return rounded if longest is None else min(rounded, longest)


def _pad(value: Tensor, length: int) -> Tensor:
    """Cut or pad with zeros to `length` tokens: token 0 is in every vocabulary, and its attention mask is 0."""
    return F.pad(value[:, :length], (0, max(0, length - value.shape[1])))


def tokens_of(inputs: dict[str, Tensor]) -> int | None:
    return next((inputs[name].shape[1] for name in TOKENS if name in inputs), None)


def _to_length(name: str, value: Tensor, length: int | None) -> Tensor:
    if name not in TOKENS or length is None:
        return value
    return value[:, torch.arange(length) % value.shape[1]]


COPY_BYTES = 1 << 30
GEMM_SIDE = 8192
WARMUP, SAMPLES = 3, 10


@dataclass(frozen=True)
class MeasuredRates:
    """Measured peak rates of this GPU: a device-to-device copy (bytes read plus written) and a large dense product."""

    copy_gb_per_s: float
    dense_tflop_per_s: float


def measure_rates(device: torch.device, dtype: torch.dtype) -> MeasuredRates | None:
    """Both rates, measured once per process, device and dtype; None on a CPU, where kernels are references.

    The product runs under torch's current TF32 setting, as the network does.
    """
    if device.type != "cuda":
        return None
    index = device.index if device.index is not None else torch.cuda.current_device()
    return _measure(torch.device("cuda", index), dtype)


@cache
def _measure(device: torch.device, dtype: torch.dtype) -> MeasuredRates:
    with exclusive(device):
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
    """Roofline bound / measured latency; 1 is the limit. A layer that runs dense uses density 1."""
    return roofline_bound_us(problem, density=density, weight_bytes=weight_bytes, rates=rates) / latency_us


def _median_ms(function: Callable[[], object], device: torch.device) -> float:
    """Device time of a long-running function by events: the launch is negligible against milliseconds."""
    return median([cuda_ms(function, device) for _ in range(WARMUP + SAMPLES)][WARMUP:])
