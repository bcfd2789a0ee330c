"""sha256 of named tensors: weights or masks."""

import hashlib
from collections.abc import Mapping

import torch
from torch import Tensor


def tensors_digest(tensors: Mapping[str, Tensor]) -> str:
    """sha256 in hexadecimal over name, dtype, shape and bytes of every tensor, by name."""
    hashed = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        hashed.update(f"{name}\0{tensor.dtype}\0{list(tensor.shape)}\0".encode())
        hashed.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy())
    return hashed.hexdigest()
