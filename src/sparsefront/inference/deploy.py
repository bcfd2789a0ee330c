"""Files that run elsewhere: `sf.to_pt2` for PyTorch without sparsefront, `sf.to_onnx` for ONNX runtimes."""

import importlib.util
import inspect
import io
import json
import logging
import math
import os
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, redirect_stderr
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import sparsefront_kernels
import torch
from sparsefront_kernels import KernelEntry, Problem, SparseLinear, find
from sparsefront_kernels.problem import X_FEATURE_MAJOR
from sparsefront_kernels.sparse_layer import SparseLayer
from sparsefront_kernels.stored_product import RECORD, by_rows, replace_products, store_products
from torch import Tensor, nn
from torch.export import Dim

from sparsefront.artifacts.durable import whole_file
from sparsefront.errors import InvalidSetting, failure_reason
from sparsefront.export.save import folder_path
from sparsefront.inference.fusion.capture import graph_sizes
from sparsefront.inference.network_modules import replace_module
from sparsefront.masks.weight_view import as_matrix
from sparsefront.measure.correctness import floating_tensors, network_error_limit, output_error, product_error_limit
from sparsefront.measure.timers import time_layer
from sparsefront.models.recurrent import SplitGRU, SplitLSTM, unsplit_reason
from sparsefront.models.unpadded import is_unpadded
from sparsefront.networks import restore_on_error, snapshot_modules, unwrap
from sparsefront.options import require_package
from sparsefront.pruning.preconditions import require_unswapped
from sparsefront.tasks.plain_task import device_of, inputs_in_words, name_inputs_on, require_network, translate_errors

log = logging.getLogger(__name__)

# What is traced: the network on tensors alone, for ranges of batch sizes and lengths.


class _Traced(nn.Module):
    """A network as a function of tensors by name, to tensors in dicts and tuples; dynamic sizes of one key are equal."""

    def __init__(self, net: nn.Module, inputs: Mapping[str, Any], dims: Mapping[str, Mapping[int, Any]]) -> None:
        super().__init__()
        self.net = net
        constants = {name: value for name, value in inputs.items() if not isinstance(value, Tensor)}

        def forward(**tensors: Tensor) -> Any:
            for place in (0, 1):
                sizes = [tensor.shape[place] for name, tensor in tensors.items() if place in dims[name]]
                for size in sizes[1:]:
                    torch._check(size == sizes[0])
            return _plain(self.net(**tensors, **constants))

        # torch.export names inputs by the signature
        names = [name for name in inputs if name not in constants]
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        forward.__signature__ = inspect.Signature([inspect.Parameter(name, kind) for name in names])  # type: ignore[attr-defined]
        self.forward = forward


def _plain(output: Any) -> Any:
    """Tensors in dicts and tuples, which any PyTorch can load; None instead of anything else, such as a cache."""
    if isinstance(output, Tensor):
        return output
    if is_dataclass(output) and not isinstance(output, Mapping):
        output = {field.name: getattr(output, field.name) for field in fields(output)}
    if isinstance(output, Mapping):
        parts = {name: _plain(part) for name, part in output.items()}
        return {name: part for name, part in parts.items() if part is not None} or None
    if isinstance(output, list | tuple):
        return tuple(part for part in map(_plain, output) if part is not None) or None
    return None


POSITIONS = re.compile(r"(.*\.)?(wpe|[a-z_]*position[a-z_]*)")  # names of tables of learned absolute positions


def _position_limit(net: nn.Module) -> tuple[float, str]:
    """Most tokens that the network's tables of learned positions hold, and the smallest table's name; infinite without any.

    BART and OPT keep two rows, RoBERTa and MPNet those up to the one of padding, which no position has.
    """
    config = getattr(net, "config", None)
    stated = getattr(config, "max_position_embeddings", None) or math.inf
    limits = [
        (min(stated, module.num_embeddings - (0 if module.padding_idx is None else module.padding_idx + 1)), name)
        for name, module in net.named_modules()
        if isinstance(module, nn.Embedding) and POSITIONS.fullmatch(name)
    ]
    return min(limits, default=(math.inf, ""))


def _dims(
    net: nn.Module, inputs: Mapping[str, Any], batch: tuple[int, int] | None, length: tuple[int, int] | None
) -> dict[str, dict[int, Any]]:
    """Dynamic dimensions of each tensor."""
    if is_unpadded(net):
        allowed = (
            "computes no padding, and a file would fix its number of tokens: give the network swapped without lengths"
        )
        raise InvalidSetting("net", type(net).__name__, allowed)
    tensors = {name: value for name, value in inputs.items() if isinstance(value, Tensor)}
    first = next(iter(tensors.values()))
    ranges = {"batch": (0, batch), "length": (1, length)}
    dims: dict[str, dict[int, Any]] = {name: {} for name in tensors}
    for key, (place, limits) in ranges.items():
        if limits is None:
            continue
        if place >= first.dim() or (key == "length" and first.dim() > 3):
            raise InvalidSetting(key, limits, f"has no dimension {place} in {inputs_in_words(inputs)}; give None")
        size = first.shape[place]
        pair = isinstance(limits, tuple | list) and [*map(type, limits)] == [int, int]
        low, high = limits if pair else (0, 0)
        if not pair or low < 1:
            raise InvalidSetting(key, limits, f"is (least, most), two whole numbers from 1, such as (1, {8 * size})")
        if not low <= size <= high or size < 2:
            allowed = (
                f"is (least, most) around the example's own {size}" if size > 1 else "needs an example of 2 or more"
            )
            raise InvalidSetting(key, limits, allowed)
        most, table = _position_limit(net) if key == "length" else (math.inf, "")
        if high > most:
            raise InvalidSetting(key, limits, f"goes up to {high} tokens, and {table} of the network holds {most}")
        dim = Dim(key, min=low, max=high)
        for name, tensor in tensors.items():
            if tensor.dim() > place and tensor.shape[place] == size:
                dims[name][place] = dim
    return dims


@contextmanager
def _blame(net: nn.Module, words: str) -> Iterator[None]:
    """Context of a tracer: its errors, of any kind and often pages long, are one line; its logs only appear with TORCH_LOGS."""
    try:
        with ExitStack() as quiet:
            if "TORCH_LOGS" not in os.environ:
                quiet.enter_context(warnings.catch_warnings())
                warnings.simplefilter("ignore")
                quiet.enter_context(redirect_stderr(io.StringIO()))  # tracers print graphs
                quiet.callback(logging.disable, logging.root.manager.disable)
                logging.disable(logging.ERROR)
            yield
    except InvalidSetting:
        raise
    except Exception as error:
        of_onnx = type(error).__module__.startswith("torch.onnx")  # it wraps the reason in advice for its own steps
        reason = failure_reason((error.__cause__ if of_onnx else None) or error)
        raise InvalidSetting("net", type(net).__name__, f"{words} ({reason})") from error


@contextmanager
def _without_fast_path() -> Iterator[None]:
    """Context without PyTorch's fused encoder layers, whose outputs differ by rounding; only some traces have them."""
    enabled = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(enabled)


def _outputs(net: nn.Module, traced: _Traced, tensors: Mapping[str, Tensor]) -> list[Tensor]:
    """Of the network, which is in eval mode afterwards, on the example."""
    what = translate_errors("example_inputs", inputs_in_words(tensors), "the network cannot be called with it")
    with restore_on_error(net), _without_fast_path(), torch.inference_mode(), what:
        net.eval()
        return floating_tensors(traced(**tensors))


@contextmanager
def _any_length(net: nn.Module, length: tuple[int, int] | None) -> Iterator[None]:
    """Context in which LSTMs and GRUs are traced for any length, if one is given; the network is unchanged afterwards.

    Raises:
        InvalidSetting: a recurrent module of another kind.
    """
    restore = snapshot_modules(net)
    try:
        for name, layer in list(net.named_modules()) if length is not None else ():
            if isinstance(layer, nn.RNNBase):
                why = unsplit_reason(layer) if isinstance(layer, nn.LSTM | nn.GRU) else f"an {type(layer).__name__}"
                if why is not None:
                    raise InvalidSetting("length", length, f"is fixed by {name} ({why}): give None, a file a length")
                split = SplitLSTM(layer) if isinstance(layer, nn.LSTM) else SplitGRU(layer)  # type: ignore[arg-type]
                replace_module(net, layer, split)
                layer = split
            if isinstance(layer, SplitLSTM):
                steps = [layer.get_submodule(f"hh{suffix}") for suffix in layer.suffixes]
                if any(getattr(product, "precision", "none") != "none" for product in steps):
                    raise InvalidSetting("length", length, f"is fixed by {name} (steps in low precision): give None")
                layer.takes_any_length = True
        yield
    finally:
        restore()


def _export(
    traced: _Traced, tensors: dict[str, Tensor], dims: Mapping[str, Mapping[int, Any]]
) -> torch.export.ExportedProgram:
    """A program for all sizes of the dimensions. Named ones would be strict themselves, but torch 2.11 then refuses
    min(16 * length, 32 * length) == 16 * length, of heads that share keys, as if it were a limit of the length.

    Raises:
        InvalidSetting: the program takes fewer sizes.
        Unfusable: the same, by a condition on several sizes or other than a limit.
    """
    free = {name: {place: Dim.AUTO(min=dim.min, max=dim.max) for place, dim in dims[name].items()} for name in tensors}
    program = torch.export.export(traced, (), tensors, dynamic_shapes={name: free[name] or None for name in tensors})
    sizes = graph_sizes(program)
    for name, shape in zip(tensors, sizes.shapes, strict=True):
        for place, dim in dims[name].items():
            size = shape[place]
            low, high = (size, size) if isinstance(size, int) else sizes.limits.get(size, (None, None))
            if (low or dim.min, high or dim.max) != (dim.min, dim.max):
                only = f"{low or dim.min} to {high or dim.max}: give that" if low != high else f"{low}: give None"
                raise InvalidSetting(dim.__name__, (dim.min, dim.max), f"torch.export's program only takes {only}")
    return program


def _path(given: Path | str, suffix: str) -> Path:
    path = folder_path("path", given)
    if path.suffix != suffix or not path.parent.is_dir():
        raise InvalidSetting("path", path, f"is a file *{suffix} in a folder that exists")
    return path


def _record(net: nn.Module, tensors: Mapping[str, Tensor], dims: Mapping[str, Mapping[int, Any]]) -> dict[str, Any]:
    """What a file states of itself; of each input the (least, most) size of each dimension."""
    device = device_of(net)
    ranges = {
        name: [
            [dim.min, dim.max] if (dim := dims[name].get(place)) is not None else [size, size]
            for place, size in enumerate(tensor.shape)
        ]
        for name, tensor in tensors.items()
    }
    return {
        "inputs": ranges,
        "dtypes": {name: str(tensor.dtype).removeprefix("torch.") for name, tensor in tensors.items()},
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "kernels": sorted({layer.kernel_name for layer in net.modules() if isinstance(layer, SparseLayer)}),
    }


def choose_by_rows(net: nn.Module, call: Callable[[], Any], factors: tuple[float, float]) -> dict[SparseLayer, str]:
    """Time the kernels of each layer's format and layout at other numbers of rows, in powers of two; the layer's own stays at
    its own rows.

    Args:
        call: runs the network on the example.
        factors: fewest and most rows over those of the example.
    Returns:
        layer -> the op's `kernel`, of layers that take others at some rows; empty on a CPU, where nothing is timed.
    """
    rows: dict[SparseLayer, int] = {}

    def observe(layer: SparseLayer, entry: KernelEntry) -> Callable[..., Tensor]:
        def product(x: Tensor, *operands: Any, **settings: Any) -> Tensor:
            rows.setdefault(layer, x.shape[1 if layer.kernel_layout in X_FEATURE_MAJOR else 0])
            return entry.product(x, *operands, **settings)

        return product

    with torch.inference_mode(), replace_products(net, observe):
        call()
    chosen: dict[SparseLayer, str] = {}
    known: dict[tuple[Any, ...], dict[int, str]] = {}
    for layer, own in rows.items():
        low, high = (max(1, math.ceil(factor * own)) for factor in factors)
        key = layer.kernel_name, layer.format.shape, json.dumps(layer.format.meta()), own
        if key not in known:
            sizes = {2**power for power in range(high.bit_length()) if low < 2**power <= high} | {low, own, own + 1}
            timed = {size: _fastest(layer, size, own) for size in sorted(sizes) if size <= high}
            known[key] = {
                size: label for (size, label), before in zip(timed.items(), [None, *timed.values()]) if label != before
            }
        if len(known[key]) > 1:
            chosen[layer] = by_rows(known[key])
    return chosen


def _fastest(layer: SparseLayer, rows: int, own: int) -> str:
    """Label of the fastest kernel of the layer's format for so many rows; the layer's own where it is as fast."""
    entry, layout, format = layer._entry, layer.kernel_layout, layer.format.to(layer.device)
    n, k = format.shape
    usable = find(format, Problem(rows, k, n, format.dtype, layer.device, layout)).usable
    alike = [one for one in usable if (one.fuses_epilogue, one.dtype_name) == (entry.fuses_epilogue, entry.dtype_name)]
    others = [one for one in alike if not one.is_reference and one.family == entry.family and one.name != entry.name]
    if rows == own or not others:
        return layer.kernel_name
    x = torch.randn(rows, k, device=layer.device).to(format.dtype)
    times: dict[str, float] = {}
    with torch.inference_mode():
        expected = SparseLinear(entry, format, layer.bias, layout)(x)
    for one in (entry, *others):
        module = SparseLinear(one, format, layer.bias, layout)
        try:
            with torch.inference_mode():
                right = output_error(module(x), expected) <= product_error_limit(format.dtype)
            if right:
                times[module.kernel_name] = time_layer(module, x).latency_us
        except Exception as error:  # a kernel may fail in any way; the layer's own remains
            log.debug("%s at %d rows: %s", module.kernel_name, rows, failure_reason(error))
    return min(times, key=times.__getitem__, default=layer.kernel_name)


def to_pt2(
    net: nn.Module,
    example_inputs: object,
    path: Path | str,
    *,
    batch: tuple[int, int] | None = None,
    length: tuple[int, int] | None = None,
    compiled: bool = False,
    kernels_by_rows: bool = False,
) -> dict[str, Any]:
    """Write a network, swapped or not, as a program of torch.export. A server loads it with torch and the kernels alone:

        import sparsefront_kernels
        run = sparsefront_kernels.load_pt2("model.pt2")
        outputs = run(input_ids=..., attention_mask=...)

    Outputs equal those of `net` to the digit (on a CPU and compiled: up to rounding): each layer keeps its kernel, which packs
    the stored weight when it first runs.
    Tensors of the output come back in dicts and tuples; anything else, such as a cache, is left out.

    Args:
        net: after `sf.swap`, in eval mode.
        example_inputs: as for `sf.swap`; values that are no tensors become constants.
        path: the file, *.pt2; replaced if it exists.
        batch: (least, most) size of dimension 0 that the file accepts; None: the example's alone.
        length: the same of dimension 1, for inputs of tokens; without it the steps of an LSTM or GRU are written out.
        compiled: whether to compile it with AOTInductor, for this device and this release of torch.
        kernels_by_rows: whether 16-bit layers take, at other numbers of rows within the ranges, the kernel of their format that
            is fastest there, timed now (on a GPU); outputs of such sizes differ from the network's by rounding.
    Returns:
        what the file states of itself: inputs, ranges, torch, device, kernels.
    Raises:
        InvalidSetting: a range that does not hold the example or exceeds the network's positions, a path that cannot be
            written, or a network that torch.export does not take; says why.
        RuntimeError: the program's outputs differ from the network's.
    """
    net, path = unwrap(net), _path(path, ".pt2")
    require_network(net)
    inputs = name_inputs_on(net, example_inputs)
    dims = _dims(net, inputs, batch, length)
    tensors = {name: value.contiguous() for name, value in inputs.items() if isinstance(value, Tensor)}
    record, traced, kernels = _record(net, tensors, dims), _Traced(net, inputs, dims), {}
    expected = _outputs(net, traced, tensors)
    if kernels_by_rows:
        first = next(iter(tensors))
        sizes = list(zip(tensors[first].shape, record["inputs"][first], strict=True))
        factors = (
            math.prod(low / size for size, (low, _) in sizes),
            math.prod(high / size for size, (_, high) in sizes),
        )
        kernels = choose_by_rows(net, lambda: traced(**tensors), factors)
        record["kernels_by_rows"] = sorted(set(kernels.values()))
    with _any_length(net, length), _without_fast_path(), torch.no_grad(), store_products(net, kernels):
        with _blame(net, "torch.export does not take it"):
            program = _export(traced, tensors, dims)
    text, does = json.dumps(record), "AOTInductor does not compile it" if compiled else "torch.export does not save it"
    with whole_file(path) as file:
        with _blame(net, does):
            if compiled:
                settings = {"aot_inductor.metadata": {RECORD: text}}
                torch._inductor.aoti_compile_and_package(program, package_path=str(file), inductor_configs=settings)
            else:
                torch.export.save(program, file, extra_files={RECORD: text})
        with torch.inference_mode():
            outputs = floating_tensors(sparsefront_kernels.load_pt2(file)(**tensors))
        exact = all(map(torch.equal, outputs, expected))
        rounds = compiled or device_of(net).type == "cpu"  # whose products depend on the alignment of weights in memory
        if not exact and not (rounds and output_error(outputs, expected) <= network_error_limit(net)):
            raise RuntimeError(f"{path}: the program's outputs differ from the network's; nothing is written")
    return record


ONNX_ERROR_LIMIT = 1e-4  # of onnxruntime against PyTorch, relative


def to_onnx(
    net: nn.Module,
    example_inputs: object,
    path: Path | str,
    *,
    batch: tuple[int, int] | None = None,
    length: tuple[int, int] | None = None,
    opset: int = 18,
) -> dict[str, Any]:
    """Write a pruned network as ONNX: narrower and shallower networks, and 2:4, whose zeros stay in dense weights.

    Such files run in onnxruntime; TensorRT finds 2:4 by itself. Other zeros make no ONNX runtime faster: they need `to_pt2`.
    The metadata of the file holds what `to_pt2` returns, and its opset. onnxruntime, where installed, checks the outputs.

    Args:
        net: pruned and not swapped; after `sf.narrow` for `Channel("width")`.
        example_inputs, batch, length: as for `to_pt2`.
        path: the file, *.onnx; replaced if it exists.
        opset: version of ONNX's operators.
    Returns:
        what the file states of itself.
    Raises:
        InvalidSetting: zeros of another pattern, with the layer's name; a swapped network; or as in `to_pt2`.
        RuntimeError: onnxruntime's outputs differ by more than 1e-4.
    """
    net, path = unwrap(net), _path(path, ".onnx")
    require_network(net)
    require_unswapped(net)
    for name, layer in net.named_modules():
        if isinstance(layer, nn.Linear | nn.Conv2d) and not _is_dense_or_2_4(layer.weight.detach() != 0):
            allowed = (
                "has zeros that are neither whole rows and columns nor 2:4, which no ONNX runtime uses; use sf.to_pt2"
            )
            raise InvalidSetting("net", name, allowed)
    for package in ("onnx", "onnxscript"):
        require_package(package, key="path", value=path, instead="sf.to_pt2")
    inputs = name_inputs_on(net, example_inputs)
    dims = _dims(net, inputs, batch, length)
    tensors = {name: value for name, value in inputs.items() if isinstance(value, Tensor)}
    record, traced = _record(net, tensors, dims) | {"opset": opset}, _Traced(net, inputs, dims)
    expected = _outputs(net, traced, tensors)
    with restore_on_error(net), torch.no_grad(), _blame(net, "torch.onnx does not take it"):
        shapes = {name: dims[name] or None for name in tensors}
        settings: dict[str, Any] = {"opset_version": opset, "dynamo": True, "verbose": False, "external_data": False}
        program = torch.onnx.export(traced, (), kwargs=tensors, dynamic_shapes=shapes, **settings)
        assert program is not None  # dynamo=True
    written = program.model.opset_imports[""]
    if written != opset:
        raise InvalidSetting("opset", opset, f"is not what torch.onnx writes of this network: give {written}")
    program.model.metadata_props[RECORD] = json.dumps(record)
    with whole_file(path) as file:
        program.save(file)
        if importlib.util.find_spec("onnxruntime") is not None:
            with _blame(net, "onnxruntime does not run what torch.onnx makes of it"):
                outputs = run_onnx(file, tensors)
            error = output_error(outputs, expected)
            if not error <= ONNX_ERROR_LIMIT:
                raise RuntimeError(f"{path}: onnxruntime's outputs differ by {error:.1e}; nothing is written")
    return record


def run_onnx(file: Path, tensors: Mapping[str, Tensor]) -> list[Tensor]:
    """Floating outputs of an ONNX file in onnxruntime on the CPU."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    names = {entry.name for entry in session.get_inputs()}  # constants may have replaced some
    outputs = session.run(None, {name: value.cpu().numpy() for name, value in tensors.items() if name in names})
    return floating_tensors([torch.from_numpy(output) for output in outputs])


FEW_ZEROS = 0.05  # share of a dense weight that happens to be zero


def _is_dense_or_2_4(mask: Tensor) -> bool:
    """Whether a weight is dense but for whole rows and columns, or keeps at most two of every four weights along K."""
    matrix = as_matrix(mask)
    rest = matrix[matrix.any(dim=1)][:, matrix.any(dim=0)]
    if not rest.numel() or rest.double().mean() >= 1 - FEW_ZEROS:
        return True
    n, k = matrix.shape
    return k % 4 == 0 and int(matrix.reshape(n, k // 4, 4).sum(dim=2).max()) <= 2
