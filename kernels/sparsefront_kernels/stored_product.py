"""`torch.ops.sparsefront.stored_product`: any 16- or 32-bit kernel on a weight in its storage format, for exported programs.

An exported program holds a layer's storage format and the name of its kernel. The op packs the format for that kernel once, on
the device where it first runs, so that the file depends neither on the packing of a version nor on Python: a server needs
torch and `import sparsefront_kernels`. Launch parameters are chosen by the number of rows, as in the layer.
"""

import json
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

from sparsefront_kernels.custom_op import CustomOp
from sparsefront_kernels.kernel_entry import KernelEntry
from sparsefront_kernels.packing import FORMATS
from sparsefront_kernels.problem import X_FEATURE_MAJOR, Y_FEATURE_MAJOR, Problem
from sparsefront_kernels.registry import labeled
from sparsefront_kernels.sparse_layer import SparseLayer

SCHEMA = (
    "(Tensor x, Tensor[] parts, Tensor? bias, Tensor? residual, str activation, str stored, str kernel, bool transposed)"
    " -> Tensor"
)
# storage of the values, kernel, device -> a reference that tells whether the storage still lives, and the packed weight
_PACKED: dict[tuple[int, str, torch.device], tuple[StorageWeakRef, Any]] = {}


def _run(
    x: Tensor,
    parts: Sequence[Tensor],
    bias: Tensor | None,
    residual: Tensor | None,
    activation: str,
    stored: str,
    kernel: str,
    transposed: bool,
) -> Tensor:
    """activation(X · Wᵀ + bias) + residual.

    Args:
        x, bias, residual: as in `KernelEntry.run`.
        parts: tensors of the format.
        stored: JSON: its family, the names of `parts` and its other fields.
        kernel: the kernel's label, layout included; or several, as from `by_rows`.
        transposed: memory order of Y: whether its second dimension is the slow one.
    """
    kernel = _kernel_at(kernel, x)
    entry, layout = labeled(kernel)
    epilogue = {"activation": activation, "residual": residual} if entry.fuses_epilogue else {}
    y = entry.run(x, _packed(entry, layout, parts, stored, kernel, x), bias, layout=layout, **epilogue)
    return y.t().contiguous().t() if transposed else y.contiguous()


NEXT, FROM = "|", ":"


def by_rows(labels: Mapping[int, str]) -> str:
    """The op's `kernel` for several kernels of one format and layout: label, then fewest rows and label of each next one.

    Args:
        labels: fewest rows -> label of the kernel, ascending; the first runs fewer rows, too.
    """
    first, *others = labels.items()
    return NEXT.join([first[1], *(f"{rows}{FROM}{label}" for rows, label in others)])


def _kernel_at(kernel: str, x: Tensor) -> str:
    """The label for the rows of X."""
    label, *others = kernel.split(NEXT)
    if others:
        rows = x.shape[1 if labeled(label)[1] in X_FEATURE_MAJOR else 0]
        for fewest, _, other in (one.partition(FROM) for one in others):
            label = other if rows >= int(fewest) else label
    return label


def _packed(
    entry: KernelEntry, layout: str | None, parts: Sequence[Tensor], stored: str, kernel: str, x: Tensor
) -> Any:
    record = json.loads(stored)
    storage = parts[record["parts"].index("values")].untyped_storage()
    key = (storage._cdata, kernel, x.device)
    if key not in _PACKED or _PACKED[key][0].expired():
        for other in [other for other, (reference, _) in _PACKED.items() if reference.expired()]:
            del _PACKED[other]
        tensors = {name: part.to(x.device) for name, part in zip(record["parts"], parts, strict=True)}
        format = FORMATS[record["family"]].from_tensors(tensors, record["meta"])
        n, k = format.shape
        rows = x.shape[1 if layout in X_FEATURE_MAJOR else 0]
        entry.require_supported(format, Problem(rows, k, n, format.dtype, x.device, layout or entry.layouts[0]))
        packed = entry.pack(format)
        _PACKED[key] = StorageWeakRef(storage), None if packed is format else packed
    packed = _PACKED[key][1]
    return _format(record, parts) if packed is None else packed


def _format(record: dict[str, Any], parts: Sequence[Tensor]) -> Any:
    """The format, not checked again; not cached, since it would keep the weights of an unloaded program."""
    format = object.__new__(FORMATS[record["family"]])
    names, meta = type(format).__dataclass_fields__, record["meta"]
    values = {name: tuple(value) if isinstance(value, list) else value for name, value in meta.items()}
    for name, value in (dict.fromkeys(names) | values | dict(zip(record["parts"], parts, strict=True))).items():
        object.__setattr__(format, name, value)
    return format


def _fake(
    x: Tensor,
    parts: Sequence[Tensor],
    bias: Tensor | None,
    residual: Tensor | None,
    activation: str,
    stored: str,
    kernel: str,
    transposed: bool,
) -> Tensor:
    layout, n = labeled(kernel.partition(NEXT)[0])[1], json.loads(stored)["meta"]["shape"][0]
    rows = x.shape[1 if layout in X_FEATURE_MAJOR else 0]
    shape = (n, rows) if layout in Y_FEATURE_MAJOR else (rows, n)
    return x.new_empty(shape[::-1]).t() if transposed else x.new_empty(shape)


stored_product = CustomOp("stored_product", _run, SCHEMA)
stored_product.register_fake(_fake)


class _Product:
    """`product` of an entry that calls the op with buffers of a layer.

    Args:
        kernel: of the op.
    """

    def __init__(self, layer: SparseLayer, entry: KernelEntry, kernel: str) -> None:
        format = layer.format
        self.layer, self.names = layer, tuple(format.tensors())
        self.stored = json.dumps({"family": format.family, "parts": self.names, "meta": format.meta()})
        self.kernel = kernel
        _, k = format.shape
        shape = (k, 8) if layer.kernel_layout in X_FEATURE_MAJOR else (8, k)
        x = torch.zeros(shape, device=layer.device, dtype=format.dtype)
        y = entry.run(x, layer._operand, layer.bias, layout=layer.kernel_layout)
        self.transposed = y.stride(0) == 1 and y.stride(1) != 1
        for name, part in format.tensors().items():
            layer.register_buffer(f"stored_{name}", part, persistent=False)

    @property
    def parts(self) -> list[Tensor]:
        """The op's `parts`."""
        return [getattr(self.layer, f"stored_{name}") for name in self.names]

    def __call__(
        self,
        x: Tensor,
        packed: Any,
        bias: Tensor | None = None,
        *,
        layout: str | None = None,
        activation: str = "none",
        residual: Tensor | None = None,
    ) -> Tensor:
        return stored_product(x, self.parts, bias, residual, activation, self.stored, self.kernel, self.transposed)


@contextmanager
def replace_products(
    net: nn.Module, make: Callable[[SparseLayer, KernelEntry], Callable[..., Tensor]]
) -> Iterator[None]:
    """Context in which every 16- or 32-bit sparse layer of a network calls another product, made from the layer and its entry."""
    layers = [layer for layer in net.modules() if isinstance(layer, SparseLayer) and layer.precision == "none"]
    before = [(layer, layer._entry) for layer in layers]
    try:
        for layer, entry in before:
            layer._entry = replace(entry, product=make(layer, entry))
        yield
    finally:
        for layer, entry in before:
            layer._entry = entry


@contextmanager
def store_products(net: nn.Module, kernels: Mapping[SparseLayer, str]) -> Iterator[None]:
    """Context in which every 16- or 32-bit sparse layer of a network calls `stored_product`, to trace it.

    Args:
        kernels: layer -> the op's `kernel`, where that is not the layer's own.
    """
    try:
        with replace_products(net, lambda layer, entry: _Product(layer, entry, kernels.get(layer, layer.kernel_name))):
            yield
    finally:
        for layer in (layer for layer in net.modules() if isinstance(layer, SparseLayer)):
            for name in layer.format.tensors():
                layer._buffers.pop(f"stored_{name}", None)
                layer._non_persistent_buffers_set.discard(f"stored_{name}")


# modules whose ops a program may call next to products
OTHER_OPS = "attention", "norm.layer_norm", "norm.rows", "recurrent"
RECORD = "sparsefront.json"  # in a file of `sf.to_pt2`: what it states of itself


def load_pt2(path: Path | str) -> Callable[..., Any]:
    """A network that `sf.to_pt2` wrote: a function of its tensors, in order or by name, to tensors in dicts and tuples.

    Args:
        path: *.pt2, from torch.export or AOTInductor.
    Raises:
        ValueError: at the load, a file of another kind, or of another torch or GPU model than this process has; or at a call,
            a missing or unknown input, or one of another dtype or device than the file's, or outside of its ranges.
    """
    for part in OTHER_OPS:
        import_module(f"sparsefront_kernels.{part}")
    if Path(path).exists() and not zipfile.is_zipfile(path):
        raise ValueError(f"{path}: not written by sf.to_pt2, or cut off")
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        compiled = any("/aotinductor/" in name for name in names)
        suffix = ".wrapper_metadata.json" if compiled else f"/extra/{RECORD}"
        texts = [archive.read(name) for name in names if name.endswith(suffix)]
    stated = json.loads(texts[0]) if texts else {}
    record = json.loads(stated.get(RECORD, "{}")) if compiled else stated
    if not record:
        raise ValueError(f"{path}: not written by sf.to_pt2")
    gpus = [torch.cuda.get_device_name(device) for device in range(torch.cuda.device_count())]
    device = record["device"] if record["device"] in ("cpu", *gpus) else ", ".join(gpus) or "no GPU"
    if (record["device"], record["torch"]) != (device, torch.__version__):
        made, here = f"{record['device']} with torch {record['torch']}", f"{device} with torch {torch.__version__}"
        raise ValueError(f"{path}: made on {made}, and here is {here}: write it again here with sf.to_pt2")
    run: Any = torch._inductor.aoti_load_package(str(path)) if compiled else torch.export.load(path).module()
    inputs = list(record["inputs"])

    def call(*positional: Tensor, **named: Tensor) -> Any:
        tensors = dict(zip(inputs, positional)) | named
        repeated = len(positional) > len(inputs) or len(positional) + len(named) > len(tensors)
        if repeated or set(inputs) - tensors.keys():
            received = [*inputs[: len(positional)], *named]
            raise ValueError(f"{path}: takes {', '.join(inputs)}, each once, not {', '.join(received) or 'nothing'}")
        for name, tensor in tensors.items():
            require_in_range(name, tensor, record)
        # a compiled program reads memory in the order of the example, whatever the strides of its inputs
        return run(**{name: tensor.contiguous() for name, tensor in tensors.items()})

    return call


def require_in_range(name: str, tensor: Tensor, record: dict[str, Any]) -> None:
    """Raise ValueError unless a tensor is an input of the file, of its dtype and device, with a shape within its ranges."""
    if name not in record["inputs"]:
        raise ValueError(f"{name}: no input of this file, which has {', '.join(record['inputs'])}")
    dtype, device = record["dtypes"][name], "cpu" if record["device"] == "cpu" else "cuda"
    seen = f"{tensor.dtype} on {tensor.device.type}" if isinstance(tensor, Tensor) else type(tensor).__name__
    if seen != f"torch.{dtype} on {device}":  # a compiled program would read its bytes as they are
        raise ValueError(f"{name}: {seen} is not torch.{dtype} on {device}, for which this file was made")
    ranges = [tuple(size) for size in record["inputs"][name]]
    if len(ranges) != tensor.dim() or any(not low <= n <= high for (low, high), n in zip(ranges, tensor.shape)):
        sizes = ", ".join(f"{low}" if low == high else f"{low} to {high}" for low, high in ranges)
        raise ValueError(f"{name}: {list(tensor.shape)} is outside of [{sizes}], for which this file was made")
