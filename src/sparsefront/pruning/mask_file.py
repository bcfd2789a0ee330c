"""Masks on disk: one bit a weight.

A safetensors file: layer -> uint8 [ceil(weights / 8)], row-major, the first weight in the lowest bit, 1 = keep; the shapes
stand in its metadata under `shapes`, as JSON. NumPy alone reads it: `unpackbits(packed, count=..., bitorder="little")`.
"""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from torch import Tensor

from sparsefront.artifacts.durable import save_tensors

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
