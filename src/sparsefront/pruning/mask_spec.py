"""What is fixed before the first mask: of each layer its permutation, sparsity and pattern; and masks on disk."""

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
from torch import Tensor

from sparsefront.allocation.base import Allocation, PerLayerAllocation
from sparsefront.artifacts.bounded_files import read_json_bounded
from sparsefront.artifacts.durable import save_tensors
from sparsefront.errors import InvalidSetting
from sparsefront.masks.weight_view import Permutation
from sparsefront.patterns.base import Pattern, from_record, to_record

# Masks on disk: one bit a weight.
#
# A safetensors file: layer -> uint8 [ceil(weights / 8)], row-major, the first weight in the lowest bit, 1 = keep; the
# shapes stand in its metadata under `shapes`, as JSON. NumPy alone reads it: `unpackbits(packed, count=...,
# bitorder="little")`.

SHAPES = "shapes"
MASKS = "masks.safetensors"


def save_masks(masks: Mapping[str, Tensor], file: Path) -> None:
    """Write layer name -> bool mask of any shape, on any device."""
    shapes = {name: list(mask.shape) for name, mask in masks.items()}
    save_tensors(file, {name: pack(mask) for name, mask in masks.items()}, {SHAPES: json.dumps(shapes)})


def load_masks(file: Path) -> dict[str, Tensor]:
    """Layer name -> bool mask, on the CPU. A file of bool tensors, as earlier versions wrote them, is read as well.

    Raises:
        ValueError: a shape that is missing, or is not that of so many bits; OSError, SafetensorError: no such file.
    """
    with safe_open(file, framework="pt") as stored:
        shapes = json.loads((stored.metadata() or {}).get(SHAPES, "{}"))
        tensors = {name: stored.get_tensor(name) for name in stored.keys()}
    return {
        name: tensor if tensor.dtype == torch.bool else unpack(tensor, _shape(shapes, name))
        for name, tensor in tensors.items()
    }


def _shape(shapes: Any, name: str) -> tuple[int, ...]:
    found = shapes.get(name) if isinstance(shapes, dict) else None
    if not isinstance(found, list) or not all(isinstance(side, int) and side >= 0 for side in found):
        raise ValueError(f"the mask of {name} has no shape")
    return tuple(found)


def mask_shapes(file: Path) -> dict[str, tuple[int, ...]]:
    """Layer name -> shape of its mask, without reading the masks."""
    with safe_open(file, framework="pt") as stored:
        shapes = json.loads((stored.metadata() or {}).get(SHAPES, "{}"))
        return {name: tuple(shapes.get(name) or stored.get_slice(name).get_shape()) for name in stored.keys()}


def pack(mask: Tensor) -> Tensor:
    """bool of any shape -> uint8 [ceil(size / 8)]."""
    return torch.from_numpy(np.packbits(mask.cpu().numpy().reshape(-1), bitorder="little"))


def unpack(packed: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The bool mask that `pack` was given. Raises ValueError where the shape is not of so many bits."""
    if packed.dtype != torch.uint8 or packed.dim() != 1 or packed.numel() != -(-math.prod(shape) // 8):
        raise ValueError(f"a mask of shape {list(shape)} is not {packed.numel()} bytes of {packed.dtype}")
    bits = np.unpackbits(packed.numpy(), count=math.prod(shape), bitorder="little")
    return torch.from_numpy(bits.astype(bool).reshape(shape))


SPARSITIES, PATTERNS, PERMUTATIONS = "layer_sparsities.json", "layer_patterns.json", "permutations.safetensors"
BLOCKS = "blocks.json"


@dataclass(frozen=True, eq=False)
class MaskSpec:
    """Masks that change on the way to a final sparsity nest only where their spec does not change with them.

    Args:
        permutations: layer -> the order in which it obeys the pattern; absent where that is its own, and of a dense one.
        sparsities: layer -> its own final sparsity, where the allocation gives it one; None where one threshold
            spans the layers, and a layer's sparsity is an outcome.
        patterns: layer -> its own pattern, of the layers that are pruned; None where all obey the same one.
        blocks: module of the dense network -> its name in the network without the blocks that a pattern took out, None of a block
            that is gone; of all members of the lists that blocks are in. None where the pattern takes no blocks.
    """

    permutations: Mapping[str, Permutation] = field(default_factory=dict)
    sparsities: Mapping[str, float] | None = None
    patterns: Mapping[str, Pattern] | None = None
    blocks: Mapping[str, str | None] | None = None

    @classmethod
    def of_dense(cls, layers: Iterable[str]) -> "MaskSpec":
        """Of layers whose masks were lifted: each keeps every weight."""
        return cls(sparsities=dict.fromkeys(layers, 0.0))

    def name_left(self, name: str) -> str | None:
        """What a module of the dense network is called in the network without its blocks; None of one that went with a block."""
        for block, left in (self.blocks or {}).items():
            if f"{name}.".startswith(f"{block}."):
                return None if left is None else left + name[len(block) :]
        return name

    def permutation(self, layer: str) -> Permutation:
        """The order of a layer."""
        return self.permutations.get(layer, Permutation())

    def sparsity_of(self, layer: str, sparsity: float) -> float:
        """The final sparsity of a layer in a network whose final sparsity is given."""
        return sparsity if self.sparsities is None else self.sparsities[layer]

    def pattern_of(self, layer: str, pattern: Pattern) -> Pattern:
        """The pattern of a layer in a network of this one; of a layer that stays dense, that of the network."""
        return pattern if self.patterns is None else self.patterns.get(layer, pattern)

    def save(self, folder: Path) -> None:
        """Write layer_sparsities.json, layer_patterns.json (class and settings) where layers have their own, blocks.json where
        blocks were taken out, and permutations.safetensors ("<layer>.outputs", "<layer>.inputs": int64); what another spec left
        there is gone.
        """
        (folder / SPARSITIES).write_text(json.dumps(self.sparsities), encoding="utf-8")
        patterns = None if self.patterns is None else {name: to_record(own) for name, own in self.patterns.items()}
        for file, content in ((PATTERNS, patterns), (BLOCKS, self.blocks)):
            if content is None:
                (folder / file).unlink(missing_ok=True)
            else:
                (folder / file).write_text(json.dumps(content), encoding="utf-8")
        orders = {}
        for layer, permutation in self.permutations.items():
            for side in ("outputs", "inputs"):
                if (order := getattr(permutation, side)) is not None:
                    orders[f"{layer}.{side}"] = order.cpu().contiguous()
        save_tensors(folder / PERMUTATIONS, orders)

    @classmethod
    def load(cls, folder: Path, *, trust: Iterable[str] = ()) -> "MaskSpec":
        """What `save` wrote, on the CPU; of a folder where nothing was saved, what holds for most: nothing is fixed.

        Args:
            trust: packages besides sparsefront whose patterns may be imported (`patterns.base.from_record`).
        Raises:
            InvalidSetting: a pattern that is not trusted, or does not take its settings.
            ValueError: a file that `save` did not write.
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
        return cls(permutations, sparsities, patterns, load_blocks(folder))


def load_blocks(folder: Path) -> dict[str, str | None] | None:
    """`MaskSpec.blocks`, as `MaskSpec.save` wrote them; None where no block was taken out.

    Raises:
        ValueError: a file that `save` did not write.
    """
    if not (folder / BLOCKS).exists():
        return None
    blocks = read_json_bounded(folder / BLOCKS)
    if not isinstance(blocks, dict) or not all(left is None or isinstance(left, str) for left in blocks.values()):
        raise ValueError(f"{BLOCKS} holds no name, or null, for each block")
    return blocks


def _permutations(orders: Mapping[str, Tensor]) -> dict[str, Permutation]:
    """From "<layer>.outputs" and "<layer>.inputs"; each holds every index once."""
    sides: dict[str, dict[str, Tensor]] = {}
    for name, order in orders.items():
        layer, _, side = name.rpartition(".")
        once_each = order.dim() == 1 and order.dtype == torch.int64
        if not layer or side not in ("outputs", "inputs") or not once_each:
            raise ValueError(f"{PERMUTATIONS} holds {name}, which is no order of outputs or inputs")
        if not torch.equal(order.sort().values, torch.arange(len(order))):
            raise ValueError(f"{PERMUTATIONS} holds {name}, in which an index is missing")
        sides.setdefault(layer, {})[side] = order
    return {layer: Permutation(**found) for layer, found in sides.items()}


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
    """Decide what follows from the first scores alone; a layer's order at its own sparsity, where it has one.

    Args:
        importance: layer name -> [N, K], finite, of layers that the pattern can divide.
        sparsity: the final one.
        weight_shapes: layer name -> the weight's own shape, where it is not [N, K]: convolutions.
    Raises:
        InvalidSetting: an allocation that cannot reach what it is asked for with these layers, or gives one of them no
            sparsity in [0, 1).
    """
    searched: dict[tuple[str, float], Permutation | None] = {}

    def permutation(layer: str, layer_sparsity: float) -> Permutation | None:
        """The order of a layer at a sparsity of its own; a dense layer needs none."""
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
        kept = pattern.layer_mask(scores, torch.ones_like(scores, dtype=torch.bool), layer_sparsity)
        return float(scores.masked_fill(kept, 0.0).sum(dtype=torch.float64))

    sparsities = None
    if isinstance(allocation, PerLayerAllocation):
        shapes = weight_shapes or {layer: tuple(scores.shape) for layer, scores in importance.items()}
        sparsities = _per_layer(allocation, allocation.layer_sparsities(shapes, sparsity, lost), shapes)
    orders = {layer: permutation(layer, (sparsities or {}).get(layer, sparsity)) for layer in importance}
    return MaskSpec({layer: order for layer, order in orders.items() if order is not None}, sparsities)


def _per_layer(allocation: Allocation, given: Mapping[str, float], layers: Iterable[str]) -> dict[str, float]:
    """What an allocation gives the layers, as plain numbers: a user's own may return tensors, or forget a layer."""
    for layer in layers:
        if layer not in given:
            raise InvalidSetting("allocation", allocation.name, f"gives layer {layer} no sparsity")
        if not 0 <= given[layer] < 1:
            allowed = f"gives layer {layer} a sparsity of {given[layer]:g}; it must lie in [0, 1)"
            raise InvalidSetting("allocation", allocation.name, allowed)
    return {layer: float(given[layer]) for layer in layers}
