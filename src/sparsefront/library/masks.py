"""Masks of a network, and what is known of how they came about."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from sparsefront.counted import counted
from sparsefront.errors import InvalidSetting
from sparsefront.masks.weight_view import fits
from sparsefront.pruning.layers import has_own_weight
from sparsefront.pruning.layout_search import SearchRecord
from sparsefront.pruning.mask_layout import MaskLayout
from sparsefront.pruning.settings import PruningSettings

if TYPE_CHECKING:
    from sparsefront.recovery.base import RoundRecord


class Masks(dict[str, Tensor]):
    """Layer name -> bool mask shaped like its weight, True = keep: a dict, with what `swap` and `recover` go by.

    Any dict of masks serves in its place. Then a layer's storage follows from its mask, and a recovery that makes new
    masks has nothing to make them with.

    Args:
        masks: layer name -> bool mask.
        pruning: how they were made; None where nobody knows.
        layout: the layers' permutations and final sparsities, fixed before the first masks.
        ignored: layers that stayed dense -> why.
        rounds: what each round of a recovery took and did.
        search: what a search for a latency found; None where none was made.
    """

    def __init__(
        self,
        masks: Mapping[str, Tensor],
        *,
        pruning: PruningSettings | None = None,
        layout: MaskLayout | None = None,
        ignored: Mapping[str, str] | None = None,
        rounds: "tuple[RoundRecord, ...]" = (),
        search: SearchRecord | None = None,
    ) -> None:
        super().__init__(masks)
        self.pruning = pruning
        self.layout = MaskLayout() if layout is None else layout
        self.ignored = dict(ignored or {})
        self.rounds = rounds
        self.search = search

    @classmethod
    def of(cls, masks: Mapping[str, Tensor]) -> "Masks":
        """The same masks; a plain dict is taken as one of which nothing else is known."""
        return masks if isinstance(masks, cls) else cls(masks)

    @property
    def sparsity(self) -> float:
        """The fraction of zeros in the masked layers."""
        total = sum(mask.numel() for mask in self.values())
        return 1 - sum(int(mask.sum()) for mask in self.values()) / total if total else 0.0

    def __repr__(self) -> str:
        how = "unknown" if self.pruning is None else self.pruning.pattern.name
        return f"Masks({counted(len(self), 'layer')}, pattern={how}, sparsity={self.sparsity:.4g}, {len(self.ignored)} ignored)"


def require_masks_of(net: nn.Module, masks: Mapping[str, Tensor]) -> None:
    """Every mask must belong to a layer of the network and be shaped like its weight, or like the matrix [N, K] of it, in whose
    columns the taps of a filter come one after the other, each with all of its input channels (`masks.weight_view`).

    Raises:
        InvalidSetting: no masks, no such layer, one whose weight is computed, a network that was swapped, or a mask that is
            not bool or has another shape; names the layer.
    """
    if not isinstance(masks, Mapping) or not masks:
        raise InvalidSetting("masks", masks, "is a dict with at least one layer name and its bool mask")
    modules = dict(net.named_modules())
    for name, mask in masks.items():
        key = f"masks[{name!r}]"
        weight = getattr(modules.get(name), "weight", None)
        if isinstance(modules.get(name), nn.Linear | nn.Conv2d) and not has_own_weight(modules[name]):
            raise InvalidSetting(key, "given", "names a layer whose weight is computed from other parameters")
        if not isinstance(weight, nn.Parameter):
            allowed = "names no layer of the network that has a weight; after sf.swap, give a copy from before it"
            raise InvalidSetting(key, "given", allowed)
        if not isinstance(mask, Tensor) or mask.dtype != torch.bool or not fits(mask, weight):
            given = f"{mask.dtype} {list(mask.shape)}" if isinstance(mask, Tensor) else type(mask).__name__
            matrix = f" or {[weight.shape[0], weight[0].numel()]}, as its matrix" if weight.dim() > 2 else ""
            raise InvalidSetting(key, given, f"must be bool {list(weight.shape)}, as the weight{matrix}")
