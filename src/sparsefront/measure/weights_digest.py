"""A name for the weights of a network: equal numbers give an equal name, however and wherever they are stored."""

import hashlib

import torch
from torch import nn


def weights_digest(net: nn.Module) -> str:
    """sha256 in hexadecimal over name, dtype, shape and bytes of every tensor of the state dict, by name."""
    hashed = hashlib.sha256()
    for name, tensor in sorted(net.state_dict().items()):
        hashed.update(f"{name}\0{tensor.dtype}\0{list(tensor.shape)}\0".encode())
        hashed.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy())
    return hashed.hexdigest()
