"""Orders of outputs and inputs that a format stores its weight in."""

import torch
from torch import Tensor


def permutation(name: str, order: Tensor | None, length: int, device: torch.device) -> Tensor:
    """An order as int64 [length] on the device; None stands for ascending.

    Args:
        name: what a message calls it.
    Raises:
        ValueError: the order is not a list of whole numbers that holds each of 0 to length - 1 once.
    """
    if order is None:
        return torch.arange(length, device=device)
    if order.is_floating_point() or order.dtype == torch.bool or order.shape != (length,):
        raise ValueError(f"{name} must be {length} whole numbers, not {order.dtype} {list(order.shape)}")
    order = order.to(device=device, dtype=torch.int64)
    if not torch.equal(order.sort().values, torch.arange(length, device=device)):
        raise ValueError(f"{name} must hold each of 0 to {length - 1} once")
    return order


def stored_order(family: str, order: Tensor | None, length: int, device: torch.device) -> Tensor | None:
    """An input order as formats store it: int32 [length] on the device, None where the inputs are as they are."""
    if order is None:
        return None
    return permutation(f"{family}: input_order", order, length, device).to(torch.int32)


def check_stored_order(family: str, order: Tensor | None, length: int) -> None:
    """Raise ValueError unless the input order that a format holds is None or an int32 permutation."""
    if order is None:
        return
    if order.dtype != torch.int32:
        raise ValueError(f"{family}: input_order must be int32, not {order.dtype}")
    permutation(f"{family}: input_order", order, length, order.device)


def columns_in_order(matrix: Tensor, order: Tensor | None) -> Tensor:
    """[rows, K] with its columns in the order (int [K]); the matrix itself where there is none."""
    return matrix if order is None else matrix.index_select(1, order)


def columns_back(arranged: Tensor, order: Tensor | None) -> Tensor:
    """The way back from `columns_in_order`."""
    if order is None:
        return arranged
    return torch.empty_like(arranged).index_copy_(1, order.long(), arranged)
