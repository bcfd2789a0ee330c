"""What a fused product multiplies by: one Linear's masked weight, or several below each other."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from sparsefront_kernels import FORMATS, SparseFormat
from sparsefront_kernels.gathered import GatheredFormat
from torch import Tensor, nn

REMADE = ("gathered", "gathered_2_4", "blocked", "blocked_2_4", "n_m", "csr", "ell", "semi_structured")
"""Families that can be made again from a weight and a mask with what their formats say of themselves."""


@dataclass(frozen=True, eq=False)
class ProductWeight:
    """W [N, K] and bias [N] of a product.

    Args:
        layers: names of the Linears, below each other.
        rows: outputs of each.
        weight: [N, K], exact zeros where pruned.
        bias: [N] or None; float32 where constants of pruned features are folded in.
        mask: bool [N, K], True = keep; None where no layer is pruned.
        stored: in the pattern's canonical format; None where no layer is pruned.
    """

    layers: tuple[str, ...]
    rows: tuple[int, ...]
    weight: Tensor
    bias: Tensor | None
    mask: Tensor | None = None
    stored: SparseFormat | None = None

    @classmethod
    def of(cls, name: str, layer: nn.Linear, stored: SparseFormat | None, mask: Tensor | None) -> "ProductWeight":
        """One Linear, which stays as it is, its weight shared; `stored` and `mask` as for `fuse_blocks`."""
        weight = layer.weight.detach()
        bias = None if layer.bias is None else layer.bias.detach()
        if stored is None or stored.family == "dense":
            return cls((name,), (weight.shape[0],), weight, bias)
        stored = stored.to(device=weight.device, dtype=weight.dtype)
        return cls((name,), (weight.shape[0],), weight, bias, mask.to(weight.device), stored)

    @property
    def family(self) -> str:
        return "dense" if self.stored is None else self.stored.family

    @property
    def density(self) -> float:
        """Fraction of weights that the masks keep."""
        return 1.0 if self.mask is None else self.mask.double().mean().item()


def join(parts: Sequence[ProductWeight]) -> ProductWeight | None:
    """Several Linears that read the same X as one product, or None where one format cannot store them.

    Tiles of gathered outputs stay whole: a layer whose last tile is narrow fills it with outputs of its own that are pruned.
    """
    weight = torch.cat([part.weight for part in parts])
    layers = tuple(name for part in parts for name in part.layers)
    rows = tuple(count for part in parts for count in part.rows)
    bias = None
    if any(part.bias is not None for part in parts):
        zeros = [part.weight.new_zeros(len(part.weight)) if part.bias is None else part.bias for part in parts]
        bias = torch.cat(zeros)
    if all(part.stored is None for part in parts):
        return ProductWeight(layers, rows, weight, bias)
    like = next(part.stored for part in parts if part.stored is not None)
    if any(part.stored is not None and stored_parameters(part.stored) != stored_parameters(like) for part in parts):
        return None
    every = (torch.ones_like(part.weight, dtype=torch.bool) if part.mask is None else part.mask for part in parts)
    mask = torch.cat(list(every))
    try:
        if isinstance(like, GatheredFormat):
            stored = _joined_tiles(parts, weight, mask, like)
        else:
            _check_whole_tiles(parts, like)
            stored = remade(like, weight, mask)
    except ValueError:  # how a format says that it cannot store a mask
        return None
    return ProductWeight(layers, rows, weight, bias, mask, stored)


def remade(like: SparseFormat, weight: Tensor, mask: Tensor, **orders: Tensor) -> SparseFormat:
    """Another weight in the format of `like`, with its parameters.

    Raises:
        ValueError: the mask does not have the structure, or the format cannot be made again.
    """
    if like.family not in REMADE or getattr(like, "input_order", None) is not None:
        raise ValueError(f"{like.family}: not made again")
    parameters = {name: value for name, value in like.meta().items() if name != "shape"}
    return FORMATS[like.family].from_dense(weight, mask, **parameters, **orders)


def tiled(like: GatheredFormat, weight: Tensor, mask: Tensor, order: Tensor) -> GatheredFormat:
    """A weight in tiles of the outputs in this order, int64 [N]; outputs that are pruned may fill a tile."""
    options = {"tile": like.tile, "drop_empty_outputs": False, "output_order": order, "fill": True}
    return GatheredFormat.from_dense(weight, mask, **options)


def outputs_in_tiles(stored: GatheredFormat) -> Tensor:
    """The outputs of the tiles that keep anything, int64, in the order of the tiles."""
    counts = stored.tile_offsets.diff()
    tile_of = torch.arange(stored.output_index.numel(), device=stored.device) // stored.tile
    return stored.output_index.long()[(counts > 0)[tile_of]]


def _joined_tiles(parts: Sequence[ProductWeight], weight: Tensor, mask: Tensor, like: GatheredFormat) -> GatheredFormat:
    # a layer that cannot fill its last tile comes last
    placed = sorted(zip(parts, _starts(parts), strict=True), key=lambda pair: len(pair[0].weight) % like.tile != 0)
    order = []
    for place, (part, first) in enumerate(placed):
        count = len(part.weight)
        inside = torch.arange(count, device=weight.device) if part.stored is None else outputs_in_tiles(part.stored)
        missing = -inside.numel() % like.tile
        others = _others(inside, count)
        if missing > others.numel() and place < len(placed) - 1:
            raise ValueError("gathered: a narrow tile would mix layers")
        order.append(torch.cat([inside, others[:missing]]) + first)
    tiles = torch.cat(order)
    return tiled(like, weight, mask, torch.cat([tiles, _others(tiles, len(weight))]))


def _check_whole_tiles(parts: Sequence[ProductWeight], like: SparseFormat) -> None:
    """Raise ValueError where 2:4 inside tiles would shift: tiles are formed of outputs that keep anything, in their order."""
    if like.family != "gathered_2_4":
        return
    for part in parts[:-1]:
        outputs = len(part.weight) if part.mask is None else int(part.mask.any(dim=1).sum())
        if outputs % like.tile:
            raise ValueError("gathered_2_4: a narrow tile would mix layers")


def _starts(parts: Sequence[ProductWeight]) -> list[int]:
    counts = [len(part.weight) for part in parts]
    return [sum(counts[:place]) for place in range(len(parts))]


def _others(index: Tensor, count: int) -> Tensor:
    """The numbers below `count` that are not in the index, ascending."""
    absent = torch.ones(count, dtype=torch.bool, device=index.device)
    absent[index] = False
    return absent.nonzero().flatten()


def stored_parameters(stored: SparseFormat) -> Mapping[str, object]:
    """Family, and what the format was made with."""
    return {"family": stored.family} | {name: value for name, value in stored.meta().items() if name != "shape"}
