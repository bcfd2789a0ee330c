"""Masks of a network, and what is known of how they came about."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import torch
from torch import Tensor, nn

from sparsefront.errors import InvalidSetting
from sparsefront.masks.weight_view import as_matrix, fits
from sparsefront.patterns.base import Pattern, to_record
from sparsefront.patterns.mixed import Candidate, Mixed
from sparsefront.progress import counted
from sparsefront.pruning.layers import has_own_weight
from sparsefront.pruning.make_masks import PruningSettings, SearchRecord
from sparsefront.pruning.mask_spec import MaskSpec
from sparsefront.pruning.masked_weights import sharing_layers
from sparsefront.schedule.one_shot import OneShot
from sparsefront.tasks.plain_task import require_network


@dataclass(frozen=True)
class RoundRecord:
    """What a round cost and did.

    Args:
        seconds: of training, those before a kill included.
        earlier_seconds: the part of them before a kill.
        epochs, steps, samples: trained, as counted: see `training.fit.Trained`.
        updates: (step, sparsity) of every change of the masks while it trained.
        sparsity, sparsity_achieved: what was asked of the masks that it began with, and what those at its end have.
    """

    seconds: float = 0.0
    earlier_seconds: float = 0.0
    epochs: float = 0.0
    steps: int = 0
    samples: int = 0
    updates: list[tuple[int, float]] = field(default_factory=list)
    sparsity: float = 0.0
    sparsity_achieved: float = 0.0


class Masks(dict[str, Tensor]):
    """Layer name -> bool mask shaped like its weight, True = keep: a dict, with what `swap` and `recover` go by.

    Any dict of masks serves in its place. Then a layer's storage follows from its mask, and a recovery that makes new
    masks has nothing to make them with.

    Args:
        masks: layer name -> bool mask.
        pruning: how they were made; None where nobody knows.
        spec: the layers' permutations and final sparsities, fixed before the first masks.
        ignored: layers that stayed dense -> why.
        rounds: what each round of a recovery took and did.
        search: what a search for a latency found; None where none was made.
    """

    def __init__(
        self,
        masks: Mapping[str, Tensor],
        *,
        pruning: PruningSettings | None = None,
        spec: MaskSpec | None = None,
        ignored: Mapping[str, str] | None = None,
        rounds: tuple[RoundRecord, ...] = (),
        search: SearchRecord | None = None,
    ) -> None:
        super().__init__(masks)
        self.pruning = pruning
        self.spec = MaskSpec() if spec is None else spec
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

    def __or__(self, other: Any) -> Any:
        """The layers of two prunings, each in its own pattern; of a layer in both, the second one's. Beside a plain dict: a
        plain dict.

        Raises:
            InvalidSetting: they differ, and the schedule of one is still to go on.
        """
        if not isinstance(other, Masks):
            return super().__or__(other)
        merged = Masks({**self, **other})
        merged.ignored = {name: why for name, why in (self.ignored | other.ignored).items() if name not in merged}
        _join(merged, self, other)
        return merged

    def __ior__(self, other: Any) -> Self:  # type: ignore[override,misc]  # a dict's takes pairs too
        self.update(other)
        return self

    def update(self, *given: Any, **named: Tensor) -> None:
        """As of a dict; of the masks of another pruning as `|`."""
        if len(given) == 1 and isinstance(given[0], Masks):
            merged = self | given[0]
            super().update(merged)
            vars(self).update(vars(merged))
            given = ()
        super().update(*given, **named)

    def __repr__(self) -> str:
        how = "unknown" if self.pruning is None else self.pruning.pattern.name
        return f"Masks({counted(len(self), 'layer')}, pattern={how}, sparsity={self.sparsity:.4g}, {len(self.ignored)} ignored)"


def _join(merged: Masks, *parts: Masks) -> None:
    """Give merged masks what is known of all of their parts; of one of which nothing is known, the structure of its masks
    would have to say it, and so it does of all.
    """
    known = [part.pruning for part in parts if part.pruning is not None]
    if any(one != known[0] for one in known) or len(known) < len(parts):
        if (going_on := next((one for one in known if one.schedule != OneShot()), None)) is not None:
            allowed = "goes on in recover, which masks of another pruning cannot join: recover each by itself first"
            raise InvalidSetting("masks", f"schedule={going_on.schedule.name}", allowed)
    if len(known) < len(parts):
        return
    part_of = {name: part for part in parts for name in part}
    orders, sparsities, patterns = {}, {}, {}
    for name in merged:
        spec, pruning = part_of[name].spec, part_of[name].pruning
        assert pruning is not None
        sparsities[name] = spec.sparsity_of(name, pruning.sparsity)
        if sparsities[name] > 0:
            patterns[name] = spec.pattern_of(name, pruning.pattern)
        if name in spec.permutations:
            orders[name] = spec.permutations[name]
    if all(one == known[0] for one in known):
        merged.pruning = known[0]
        if all(part.spec.sparsities is None for part in parts):
            merged.spec = MaskSpec(orders)
            return
    else:
        merged.pruning = PruningSettings(
            _pattern_of_all(known, patterns, sparsities), max(one.sparsity for one in known)
        )
    merged.spec = MaskSpec(orders, sparsities, patterns if merged.pruning.pattern.mixed else None)


def _pattern_of_all(
    known: Sequence[PruningSettings], patterns: Mapping[str, Pattern], sparsities: Mapping[str, float]
) -> Pattern:
    """The pattern that all pruned layers have, or one that is made of theirs."""
    records: list[Candidate] = [to_record(pattern) for pattern in patterns.values()]
    different = [record for place, record in enumerate(records) if record not in records[:place]]
    if len(different) > 1:
        return Mixed(candidates=different, sparsities=sorted({share for share in sparsities.values() if share > 0}))
    return next(iter(patterns.values()), known[0].pattern)


def require_masks_of(net: nn.Module, masks: Mapping[str, Tensor]) -> None:
    """Every mask must belong to a layer of the network and be shaped like its weight, or like the matrix [N, K] of it, in whose
    columns the taps of a filter come one after the other, each with all of its input channels (`masks.weight_view`).

    Raises:
        InvalidSetting: no network, no masks, no such layer, one whose weight is computed, a network that was swapped, or a mask
            that is not bool, has another shape, or differs from that of a layer with the same weight; names the layer.
    """
    require_network(net)
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
    for name, (first, *others) in sharing_layers(net, masks).items():
        if name in others and not torch.equal(*(as_matrix(masks[one]).cpu() for one in (first, name))):
            allowed = f"is another mask than that of {first}, whose weight it shares"
            raise InvalidSetting(f"masks[{name!r}]", "given", allowed)
