"""Bytes of weights and of one forward, and the achieved sparsity."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import torch
from sparsefront_kernels import SparseFormat
from sparsefront_kernels.sparse_layer import SparseLayer
from torch import Tensor, nn

from sparsefront.networks import PrunableLayer, layer_weight


def weight_bytes(net: nn.Module, dtype: torch.dtype | None = None) -> int:
    """Bytes of all parameters, buffers and compressed weights; tensors that share memory count once.

    Args:
        net: dense or sparse.
        dtype: count floating parameters and buffers as if they had this type (a dense net before it is cast); None:
            their own. Compressed weights always count in their own.
    """
    total = 0
    for tensor in _distinct([*net.parameters(), *net.buffers()]):
        itemsize = dtype.itemsize if dtype is not None and tensor.is_floating_point() else tensor.itemsize
        total += tensor.numel() * itemsize
    return total + sum(module.format.nbytes for module in net.modules() if isinstance(module, SparseLayer))


def resident_bytes(net: nn.Module, device: torch.device) -> int:
    """Bytes of the network on the device: parameters, buffers, and operands that its layers packed for their kernels.

    Whole storages count, each once, since a view keeps its storage alive. Tensors on other devices do not count.
    """
    held = [tensor for module in net.modules() for tensor in _tensors_in(vars(module).values())]
    storages = [tensor.untyped_storage() for tensor in held if tensor.device.type == device.type]
    return sum({storage._cdata: storage.nbytes() for storage in storages}.values())


def dense_layer_bytes(
    net: nn.Module, layers: Iterable[str], name_left: Callable[[str], str | None] = str
) -> dict[str, int]:
    """Layer -> bytes of its weight, for those layers whose weight is still dense.

    Args:
        name_left: layer -> its name in `net`, None if it was removed: see `MaskSpec.name_left`.
    """
    modules = {name: module for name, module in net.named_modules() if isinstance(module, PrunableLayer)}
    left = {name: name_left(name) for name in layers}
    return {name: modules[own].weight.nbytes for name, own in left.items() if own in modules}


def peak_memory_bytes(net: nn.Module, inputs: dict[str, Tensor]) -> int | None:
    """Peak bytes of one eager forward, weights included; None on a CPU.

    Other memory on the GPU, such as the other network's, is not counted.
    """
    device = next(iter(inputs.values())).device
    if device.type != "cuda":
        return None
    with torch.inference_mode():
        net(**inputs)  # libraries allocate workspaces once, which do not belong to this net
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        output: Any = net(**inputs)
        torch.cuda.synchronize(device)
    peak = torch.cuda.max_memory_allocated(device)
    del output
    return resident_bytes(net, device) + peak - before


def _tensors_in(parts: Iterable[Any]) -> Iterator[Tensor]:
    """Tensors among a module's attributes, including those in dataclasses (formats, packed operands) and containers."""
    for part in parts:
        if isinstance(part, Tensor):
            yield part
        elif isinstance(part, Mapping):
            yield from _tensors_in(part.values())
        elif isinstance(part, list | tuple | set):
            yield from _tensors_in(part)
        elif is_dataclass(part) and not isinstance(part, type):
            yield from _tensors_in(getattr(part, field.name) for field in fields(part))


def _distinct(tensors: list[Tensor]) -> Iterator[Tensor]:
    seen: set[tuple[int, int]] = set()
    for tensor in tensors:
        place = (tensor.data_ptr() or id(tensor), tensor.numel())  # on the meta device every address is 0
        if tensor.numel() and place not in seen:
            seen.add(place)
            yield tensor


def count_bytes(module: nn.Module) -> int:
    """Bytes of values and indices if weights are compressed, else of the weight, else of all parameters."""
    formats = [getattr(part, "format", None) for part in module.modules()]
    compressed = [layer_format for layer_format in formats if isinstance(layer_format, SparseFormat)]
    if compressed:
        return sum(stored.nbytes for stored in compressed)
    return (
        layer_weight(module).nbytes if hasattr(module, "weight") else sum(part.nbytes for part in module.parameters())
    )


@dataclass(frozen=True)
class AchievedSparsity:
    """Fractions of zeros in [0, 1].

    Args:
        sparsity_achieved: over all prunable weights, layers that stayed dense included.
        sparsity_whole_model: pruned weights / all parameters (embeddings, norms, biases and head too).
        layers: prunable layer -> its sparsity; 0 where it stayed dense.
        weight_shares: prunable layer -> its fraction of all prunable weights.
    """

    sparsity_achieved: float
    sparsity_whole_model: float
    layers: dict[str, float]
    weight_shares: dict[str, float]


def measure_sparsity(net: nn.Module, masks: Mapping[str, Tensor], prunable: Iterable[str]) -> AchievedSparsity:
    """Count the weights that the masks remove.

    Args:
        net: any device, meta included; only shapes are read.
        masks: layer -> bool with as many elements as its weight, True = keep.
        prunable: names of all layers that could have been pruned.
    Raises:
        ValueError: a mask of another size than its weight, or for a layer that is not prunable.
    """
    sizes = {name: layer_weight(net.get_submodule(name)).numel() for name in prunable}
    unknown = set(masks) - set(sizes)
    if unknown:
        raise ValueError(f"masks for layers that are not prunable: {', '.join(sorted(unknown))}")
    pruned = {}
    for name, size in sizes.items():
        mask = masks.get(name)
        if mask is not None and mask.numel() != size:
            raise ValueError(f"the mask of {name} has {mask.numel()} elements, its weight {size}")
        pruned[name] = 0 if mask is None else size - int(mask.sum())
    removed, total = sum(pruned.values()), sum(sizes.values())
    return AchievedSparsity(
        sparsity_achieved=removed / total if total else 0.0,
        sparsity_whole_model=removed / sum(parameter.numel() for parameter in net.parameters()),
        layers={name: pruned[name] / size for name, size in sizes.items()},
        weight_shares={name: size / total for name, size in sizes.items()},
    )
