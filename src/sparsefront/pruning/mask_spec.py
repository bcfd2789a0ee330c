"""What is fixed before the first mask (each layer's permutation, sparsity and pattern), and mask files."""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor, nn

from sparsefront.allocation.base import Allocation, PerLayerAllocation
from sparsefront.artifacts.bounded_files import read_json_bounded
from sparsefront.artifacts.durable import save_tensors
from sparsefront.errors import InvalidSetting
from sparsefront.masks.weight_view import Permutation
from sparsefront.networks import remove_blocks
from sparsefront.patterns.base import Pattern, from_record, to_record
from sparsefront.pruning.structure import Structure, apply_structure, structure_from_json, structure_to_json

# Mask files: one bit per weight.
#
# A safetensors file: layer -> uint8 [ceil(weights / 8)], row-major, first weight in the lowest bit, 1 = keep. The shapes
# are in its metadata under `shapes`, as JSON. NumPy alone can read it: `unpackbits(packed, count=...,
# bitorder="little")`.

SHAPES = "shapes"
MASKS = "masks.safetensors"


def save_masks(masks: Mapping[str, Tensor], file: Path) -> None:
    """Write layer name -> bool mask of any shape, on any device."""
    shapes = {name: list(mask.shape) for name, mask in masks.items()}
    save_tensors(file, {name: pack(mask) for name, mask in masks.items()}, {SHAPES: json.dumps(shapes)})


def load_masks(file: Path) -> dict[str, Tensor]:
    """Layer name -> bool mask, on the CPU. Also reads files of bool tensors from earlier versions.

    Raises:
        ValueError: a shape is missing or does not match the number of bits; OSError, SafetensorError: no such file.
    """
    with safe_open(file, framework="pt") as stored:
        shapes = json.loads((stored.metadata() or {}).get(SHAPES, "{}"))
        tensors = {name: stored.get_tensor(name) for name in stored.keys()}
    return {
        name: tensor if tensor.dtype == torch.bool else unpack(tensor, _shape(shapes, name))
        for name, tensor in tensors.items()
    }


def _shape(shapes: Any, name: str) -> tuple[int, ...]:
    shape = shapes.get(name) if isinstance(shapes, dict) else None
    if not isinstance(shape, list) or not all(isinstance(side, int) and side >= 0 for side in shape):
        raise ValueError(f"the mask of {name} has no shape")
    return tuple(shape)


def mask_shapes(file: Path) -> dict[str, tuple[int, ...]]:
    """Layer name -> shape of its mask, without reading the masks."""
    with safe_open(file, framework="pt") as stored:
        shapes = json.loads((stored.metadata() or {}).get(SHAPES, "{}"))
        return {name: tuple(shapes.get(name) or stored.get_slice(name).get_shape()) for name in stored.keys()}


def pack(mask: Tensor) -> Tensor:
    """Pack a bool tensor of any shape into uint8 [ceil(size / 8)]."""
    return torch.from_numpy(np.packbits(mask.cpu().numpy().reshape(-1), bitorder="little"))


def unpack(packed: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Inverse of `pack`. Raises ValueError if the shape does not match the number of bits."""
    if packed.dtype != torch.uint8 or packed.dim() != 1 or packed.numel() != -(-math.prod(shape) // 8):
        raise ValueError(f"a mask of shape {list(shape)} is not {packed.numel()} bytes of {packed.dtype}")
    bits = np.unpackbits(packed.numpy(), count=math.prod(shape), bitorder="little")
    return torch.from_numpy(bits.astype(bool).reshape(shape))


SPARSITIES, PATTERNS, PERMUTATIONS = "layer_sparsities.json", "layer_patterns.json", "permutations.safetensors"
BLOCKS, STRUCTURE = "blocks.json", "structure.json"


@dataclass(frozen=True, eq=False)
class MaskSpec:
    """What must stay fixed while masks change on the way to a final sparsity, so that they are nested.

    Args:
        permutations: layer -> the permutation under which it obeys the pattern; absent for identity and dense layers.
        sparsities: layer -> its own final sparsity, if the allocation assigns one; None if one threshold spans the layers.
        patterns: pruned layer -> its own pattern; None if all share one.
        blocks: module of the dense network -> its name after whole blocks were removed, None for removed ones; for all
            members of the lists that contain blocks. None if the pattern removes no blocks.
        structure: what a larger network had lost before: masks have the names and shapes of what was left.
    """

    permutations: Mapping[str, Permutation] = field(default_factory=dict)
    sparsities: Mapping[str, float] | None = None
    patterns: Mapping[str, Pattern] | None = None
    blocks: Mapping[str, str | None] | None = None
    structure: Structure = ()

    def of_dense(self, layers: Iterable[str]) -> "MaskSpec":
        """The spec of layers whose masks were lifted: each keeps every weight."""
        return MaskSpec(sparsities=dict.fromkeys(layers, 0.0), structure=self.structure)

    def shrink(self, net: nn.Module) -> None:
        """Remove from a network of the original architecture all that its structure and the pattern remove, in place."""
        apply_structure(net, self.structure)
        remove_blocks(net, self.blocks or {})

    def name_left(self, name: str) -> str | None:
        """The name of a dense network's module after blocks were removed; None if it was removed with one."""
        return _name_left(name, self.blocks or {})

    @property
    def removed_blocks(self) -> list[Mapping[str, str | None]]:
        """The blocks that the original network lost, removal by removal, each by the names of before it."""
        earlier = [removal.blocks for removal in self.structure if removal.blocks]
        return earlier if self.blocks is None else [*earlier, self.blocks]

    def name_of_original(self, name: str) -> str | None:
        """What has become of a module of the original network; None if it was removed with a block."""
        left: str | None = name
        for blocks in self.removed_blocks:
            left = None if left is None else _name_left(left, blocks)
        return left

    def permutation(self, layer: str) -> Permutation:
        """The permutation of a layer."""
        return self.permutations.get(layer, Permutation())

    def sparsity_of(self, layer: str, sparsity: float) -> float:
        """The final sparsity of a layer, given that of the network."""
        return sparsity if self.sparsities is None else self.sparsities[layer]

    def pattern_of(self, layer: str, pattern: Pattern) -> Pattern:
        """The pattern of a layer, given that of the network; layers that stay dense have the latter."""
        return pattern if self.patterns is None else self.patterns.get(layer, pattern)

    def save(self, folder: Path) -> None:
        """Write layer_sparsities.json, layer_patterns.json (class and settings, if layers have their own), blocks.json (if blocks
        were removed), structure.json (if the network was smaller before), and permutations.safetensors ("<layer>.outputs",
        "<layer>.inputs": int64); removes files of another spec.
        """
        (folder / SPARSITIES).write_text(json.dumps(self.sparsities), encoding="utf-8")
        patterns = None if self.patterns is None else {name: to_record(own) for name, own in self.patterns.items()}
        structure = structure_to_json(self.structure) or None
        for file, content in ((PATTERNS, patterns), (BLOCKS, self.blocks), (STRUCTURE, structure)):
            if content is None:
                (folder / file).unlink(missing_ok=True)
            else:
                (folder / file).write_text(json.dumps(content), encoding="utf-8")
        orders = {}
        for layer, permutation in self.permutations.items():
            for side in ("outputs", "inputs"):
                order = getattr(permutation, side)
                if order is not None:
                    orders[f"{layer}.{side}"] = order.cpu().contiguous()
        save_tensors(folder / PERMUTATIONS, orders)

    @classmethod
    def load(cls, folder: Path, *, trust: Iterable[str] = ()) -> "MaskSpec":
        """Load what `save` wrote, on the CPU; an empty folder gives the default spec.

        Args:
            trust: packages besides sparsefront whose patterns may be imported (`patterns.base.from_record`).
        Raises:
            InvalidSetting: a pattern is not trusted or has invalid settings.
            ValueError: `save` did not write a file.
        """
        if not (folder / SPARSITIES).exists():
            return cls()
        permutations = _permutations(load_file(folder / PERMUTATIONS))
        sparsities = read_json_bounded(folder / SPARSITIES)
        if sparsities is not None and not _are_sparsities(sparsities):
            raise ValueError(f"{SPARSITIES} holds no sparsity in [0, 1) for each layer")
        patterns = None
        if (folder / PATTERNS).exists():
            records = read_json_bounded(folder / PATTERNS)
            if not isinstance(records, dict) or not all(isinstance(record, dict) for record in records.values()):
                raise ValueError(f"{PATTERNS} holds no pattern for each layer")
            trusted = tuple(trust)
            patterns = {layer: from_record(record, trust=trusted) for layer, record in records.items()}
        return cls(permutations, sparsities, patterns, load_blocks(folder), load_structure(folder))


def _name_left(name: str, blocks: Mapping[str, str | None]) -> str | None:
    for block, left in blocks.items():
        if f"{name}.".startswith(f"{block}."):
            return None if left is None else left + name[len(block) :]
    return name


def load_blocks(folder: Path) -> dict[str, str | None] | None:
    """`MaskSpec.blocks` as written by `MaskSpec.save`; None if no block was removed.

    Raises:
        ValueError: `save` did not write the file.
    """
    if not (folder / BLOCKS).exists():
        return None
    blocks = read_json_bounded(folder / BLOCKS)
    if not isinstance(blocks, dict) or not all(left is None or isinstance(left, str) for left in blocks.values()):
        raise ValueError(f"{BLOCKS} holds no name, or null, for each block")
    return blocks


def load_structure(folder: Path) -> Structure:
    """`MaskSpec.structure` as written by `MaskSpec.save`; empty if there was none.

    Raises:
        ValueError: `save` did not write the file.
    """
    if not (folder / STRUCTURE).exists():
        return ()
    try:
        return structure_from_json(read_json_bounded(folder / STRUCTURE))
    except ValueError as error:
        raise ValueError(f"{STRUCTURE} {error}") from error


def _permutations(orders: Mapping[str, Tensor]) -> dict[str, Permutation]:
    """Build permutations from "<layer>.outputs" and "<layer>.inputs"; each must contain every index once."""
    sides: dict[str, dict[str, Tensor]] = {}
    for name, order in orders.items():
        layer, _, side = name.rpartition(".")
        once_each = order.dim() == 1 and order.dtype == torch.int64
        if not layer or side not in ("outputs", "inputs") or not once_each:
            raise ValueError(f"{PERMUTATIONS} holds {name}, which is no order of outputs or inputs")
        if not torch.equal(order.sort().values, torch.arange(len(order))):
            raise ValueError(f"{PERMUTATIONS} holds {name}, in which an index is missing")
        sides.setdefault(layer, {})[side] = order
    return {layer: Permutation(**side_orders) for layer, side_orders in sides.items()}


def _are_sparsities(content: Any) -> bool:
    if not isinstance(content, dict):
        return False
    return all(type(value) in (int, float) and 0 <= value < 1 for value in content.values())


def fix_spec(
    importance: Mapping[str, Tensor],
    pattern: Pattern,
    allocation: Allocation,
    sparsity: float,
    *,
    weight_shapes: Mapping[str, tuple[int, ...]] | None = None,
) -> MaskSpec:
    """Fix the mask spec from the first scores; permutations are computed at each layer's own sparsity, if it has one.

    Args:
        importance: layer name -> [N, K], finite, of layers that the pattern can divide.
        sparsity: the final one.
        weight_shapes: layer name -> the weight's own shape if it is not [N, K] (convolutions).
    Raises:
        InvalidSetting: the allocation cannot reach its target with these layers, or assigns one of them no sparsity in
            [0, 1).
    """
    searched: dict[tuple[str, float], Permutation | None] = {}

    def permutation(layer: str, layer_sparsity: float) -> Permutation | None:
        """The permutation of a layer at its own sparsity; None for dense layers."""
        if layer_sparsity == 0:
            return None
        if (layer, layer_sparsity) not in searched:
            searched[layer, layer_sparsity] = pattern.find_permutation(importance[layer].float(), layer_sparsity)
        return searched[layer, layer_sparsity]

    def lost(layer: str, layer_sparsity: float) -> float:
        if layer_sparsity == 0:
            return 0.0
        order = permutation(layer, layer_sparsity) or Permutation()
        scores = order.apply(importance[layer].float())
        mask = pattern.layer_mask(scores, torch.ones_like(scores, dtype=torch.bool), layer_sparsity)
        return float(scores.masked_fill(mask, 0.0).sum(dtype=torch.float64))

    sparsities = None
    if isinstance(allocation, PerLayerAllocation):
        shapes = weight_shapes or {layer: tuple(scores.shape) for layer, scores in importance.items()}
        sparsities = _per_layer(allocation, allocation.sparsities_of(importance, shapes, sparsity, lost), shapes)
    orders = {layer: permutation(layer, (sparsities or {}).get(layer, sparsity)) for layer in importance}
    return MaskSpec({layer: order for layer, order in orders.items() if order is not None}, sparsities)


def _per_layer(allocation: Allocation, given: Mapping[str, float], layers: Iterable[str]) -> dict[str, float]:
    """The allocation's layer sparsities as floats: user classes may return tensors, or omit a layer."""
    for layer in layers:
        if layer not in given:
            raise InvalidSetting("allocation", allocation.name, f"gives layer {layer} no sparsity")
        if not 0 <= given[layer] < 1:
            allowed = f"gives layer {layer} a sparsity of {given[layer]:g}; it must lie in [0, 1)"
            raise InvalidSetting("allocation", allocation.name, allowed)
    return {layer: float(given[layer]) for layer in layers}
