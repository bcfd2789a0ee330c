"""Collectives for data-parallel training, which also work in a single process without torch.distributed."""

import torch
import torch.distributed as dist
from torch import Tensor


def world_size() -> int:
    """The number of ranks; 1 in a single process."""
    return dist.get_world_size() if _is_distributed() else 1


def rank() -> int:
    """This process's rank, from 0."""
    return dist.get_rank() if _is_distributed() else 0


def all_reduce_sum(tensor: Tensor) -> Tensor:
    """The sum over ranks, bitwise equal on every rank; a new tensor of the same shape, dtype and device."""
    if not _is_distributed():
        return tensor
    summed = tensor.detach().clone(memory_format=torch.contiguous_format)
    dist.all_reduce(summed)
    return summed


def broadcast(tensor: Tensor) -> Tensor:
    """Rank 0's tensor on every rank; a new tensor of the same shape and dtype on the argument's device."""
    if not _is_distributed():
        return tensor
    sent = tensor.detach().clone(memory_format=torch.contiguous_format)
    dist.broadcast(sent.view(torch.uint8) if sent.dtype == torch.bool else sent, src=0)
    return sent


def all_gather(content: object) -> list:
    """A list with every rank's `content`, which must be picklable, in rank order."""
    if not _is_distributed():
        return [content]
    contents: list = [None] * world_size()
    dist.all_gather_object(contents, content)
    return contents


def _is_distributed() -> bool:
    return dist.is_available() and dist.is_initialized()
