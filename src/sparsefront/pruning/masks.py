"""Masks of a network and how they were made; `sf.hold`, which applies them in any training loop."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook
from torch.utils.hooks import RemovableHandle

from sparsefront.errors import InvalidSetting
from sparsefront.masks.weight_view import as_matrix, fits, like_weight
from sparsefront.models.linears import as_linears
from sparsefront.networks import PrunableLayer, has_blocks, layer_weight, unwrap
from sparsefront.patterns.base import Pattern, to_record
from sparsefront.patterns.hidden import ties_of
from sparsefront.patterns.mixed import Candidate, Mixed
from sparsefront.progress import counted
from sparsefront.pruning.layers import has_own_weight
from sparsefront.pruning.make_masks import PruningSettings, SearchRecord
from sparsefront.pruning.mask_spec import MaskSpec
from sparsefront.pruning.masked_weights import require_none_dense, sharing_layers
from sparsefront.pruning.structure import structure_of
from sparsefront.pruning.unit_hooks import hook_units
from sparsefront.schedule.one_shot import OneShot
from sparsefront.tasks.plain_task import require_network

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RoundRecord:
    """What a round did and took.

    Args:
        seconds: of training, including those before a kill.
        earlier_seconds: those before a kill.
        epochs, steps, samples, unlabeled, gpu_busy_share: see `training.fit.Trained`.
        updates: (step, fraction of zeros after it) of every change of masks during training.
        sparsity, sparsity_achieved: requested of the first masks, and reached by the final ones.
    """

    seconds: float = 0.0
    earlier_seconds: float = 0.0
    epochs: float = 0.0
    steps: int = 0
    samples: int = 0
    unlabeled: int | None = None
    gpu_busy_share: float | None = None
    updates: list[tuple[int, float]] = field(default_factory=list)
    sparsity: float = 0.0
    sparsity_achieved: float = 0.0


class Masks(dict[str, Tensor]):
    """Layer name -> bool mask shaped like its weight, True = keep: a dict with metadata for `swap` and `recover`.

    Any dict of masks can be used instead. Storage then follows from the masks alone, and a recovery that needs new masks
    cannot make them.

    Args:
        masks: layer name -> bool mask.
        pruning: how they were made; None if unknown.
        spec: the layers' permutations and final sparsities, fixed before the first masks.
        ignored: prunable layers that stayed dense -> why.
        dense: everything else with weights, including layers that were not chosen -> why: embeddings, recurrent layers,
            parameters that are read without a layer call. In the network's own names.
        rounds: a record of each round of a recovery.
        search: result of a latency search; None if there was none.
    """

    def __init__(
        self,
        masks: Mapping[str, Tensor],
        *,
        pruning: PruningSettings | None = None,
        spec: MaskSpec | None = None,
        ignored: Mapping[str, str] | None = None,
        dense: Mapping[str, str] | None = None,
        rounds: tuple[RoundRecord, ...] = (),
        search: SearchRecord | None = None,
    ) -> None:
        if not isinstance(masks, Mapping):
            raise InvalidSetting("masks", type(masks).__name__, "is a dict: layer name -> bool mask")
        super().__init__(masks)
        self.pruning = pruning
        self.spec = MaskSpec() if spec is None else spec
        self.ignored = dict(ignored or {})
        self.dense = dict(dense or {})
        self.rounds = rounds
        self.search = search

    @classmethod
    def of(cls, masks: Mapping[str, Tensor]) -> "Masks":
        """Wrap masks; a plain dict gets no metadata."""
        return masks if isinstance(masks, cls) else cls(masks)

    @property
    def sparsity(self) -> float:
        """Fraction of zeros in the masked layers."""
        total = sum(mask.numel() for mask in self.values())
        return 1 - sum(int(mask.sum()) for mask in self.values()) / total if total else 0.0

    def __or__(self, other: Any) -> Any:
        """Merge the layers of two prunings, each with its own pattern; the right operand wins. With a plain dict: a plain dict.

        Raises:
            InvalidSetting: they differ, and the schedule of one has not ended yet.
        """
        if not isinstance(other, Masks):
            return super().__or__(other)
        merged = Masks({**self, **other})
        merged.ignored = {name: why for name, why in (self.ignored | other.ignored).items() if name not in merged}
        dense = {**self.dense, **other.dense}
        merged.dense = {name: why for name, why in dense.items() if name not in merged and name not in merged.ignored}
        _join(merged, self, other)
        return merged

    def __ior__(self, other: Any) -> Self:  # type: ignore[override,misc]  # a dict's takes pairs too
        self.update(other)
        return self

    def update(self, *given: Any, **named: Tensor) -> None:
        """Like dict.update; masks of another pruning are merged as by `|`."""
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
    """Give merged masks the metadata of all parts. If one part has none, the result has none, and storage follows from the masks
    alone.
    """
    if any(part.spec.blocks is not None for part in parts):
        allowed = "took blocks out of the network, whose layers have other names since: its masks join no others"
        raise InvalidSetting("masks", "pattern=depth", allowed)
    merged.spec = MaskSpec(structure=parts[0].spec.structure)
    if any(part.spec.structure != merged.spec.structure for part in parts):
        raise InvalidSetting("masks", "given", "are of two networks: one of them was made smaller before it was pruned")
    known = [part.pruning for part in parts if part.pruning is not None]
    if any(one != known[0] for one in known) or len(known) < len(parts):
        going_on = next((one for one in known if one.schedule != OneShot()), None)
        if going_on is not None:
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
            merged.spec = replace(merged.spec, permutations=orders)
            return
    else:
        merged.pruning = PruningSettings(
            _pattern_of_all(known, patterns, sparsities), max(one.sparsity for one in known)
        )
    own = patterns if merged.pruning.pattern.mixed else None
    merged.spec = replace(merged.spec, permutations=orders, sparsities=sparsities, patterns=own)


def _pattern_of_all(
    known: Sequence[PruningSettings], patterns: Mapping[str, Pattern], sparsities: Mapping[str, float]
) -> Pattern:
    """The pattern shared by all pruned layers, or a mixed one of theirs."""
    records: list[Candidate] = [to_record(pattern) for pattern in patterns.values()]
    different = [record for place, record in enumerate(records) if record not in records[:place]]
    if len(different) > 1:
        return Mixed(candidates=different, sparsities=sorted({share for share in sparsities.values() if share > 0}))
    return next(iter(patterns.values()), known[0].pattern)


def masks_left(net: nn.Module, masks: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """The masks of the layers that a network still has: the given ones, or, after whole blocks were removed, those of the
    remaining layers under their new names, which keep every weight.

    Raises:
        InvalidSetting: the network still has the removed blocks, or is another one.
    """
    blocks = masks.spec.blocks if isinstance(masks, Masks) else None
    if not isinstance(masks, Masks) or blocks is None:
        return masks
    if has_blocks(net, blocks) and None in blocks.values():
        allowed = "still has the blocks that were taken out: give the network that sf.prune, sf.recover or sf.load left"
        raise InvalidSetting("net", type(net).__name__, allowed)
    return {left: mask for name, mask in masks.items() if (left := masks.spec.name_left(name)) is not None}


def require_masks_of(net: nn.Module, masks: Mapping[str, Tensor]) -> None:
    """Check that every mask belongs to a layer and is shaped like its weight or like its matrix [N, K], whose columns are
    ordered (kh, kw, C_in) for a convolution (`masks.weight_view`).

    Raises:
        InvalidSetting: not a network, no masks, no such layer, a computed weight, a swapped network, or a mask that is not
            bool, has the wrong shape, or differs from that of a layer with the same weight; names the layer.
    """
    require_network(net)
    require_dict(masks)
    as_linears(net, masks)
    modules = dict(net.named_modules())
    for name, mask in masks.items():
        key = f"masks[{name!r}]"
        weight = getattr(modules.get(name), "weight", None)
        if isinstance(modules.get(name), PrunableLayer) and not has_own_weight(modules[name]):
            raise InvalidSetting(key, "given", "names a layer whose weight is computed from other parameters")
        if not isinstance(weight, nn.Parameter):
            allowed = "names no layer of the network that has a weight; after sf.swap, give a copy from before it"
            raise InvalidSetting(key, "given", allowed)
        if not isinstance(mask, Tensor) or mask.dtype != torch.bool or not fits(mask, weight):
            actual = f"{mask.dtype} {list(mask.shape)}" if isinstance(mask, Tensor) else type(mask).__name__
            matrix = f" or {[weight.shape[0], weight[0].numel()]}, as its matrix" if weight.dim() > 2 else ""
            hint = (
                "; masks from before sf.narrow do not fit any more: save them before it, or prune the narrower network"
            )
            allowed = f"must be bool {list(weight.shape)}, as the weight{matrix}" + hint * bool(structure_of(net))
            raise InvalidSetting(key, actual, allowed)
        if mask.is_meta or mask.layout != torch.strided:
            actual = "on the meta device" if mask.is_meta else str(mask.layout)
            raise InvalidSetting(key, actual, "must be a plain tensor with values")
    for name, (first, *others) in sharing_layers(net, masks).items():
        if name in others and not torch.equal(*(as_matrix(masks[one]).cpu() for one in (first, name))):
            allowed = f"is another mask than that of {first}, whose weight it shares"
            raise InvalidSetting(f"masks[{name!r}]", "given", allowed)


def require_dict(masks: object) -> None:
    if not isinstance(masks, Mapping) or not masks:
        actual = masks if isinstance(masks, Mapping | None) else type(masks).__name__
        raise InvalidSetting("masks", actual, "is a dict with at least one layer name and its bool mask")


def hold(net: nn.Module, masks: Mapping[str, Tensor]) -> "HeldMasks":
    """Keep pruned weights at exactly zero in your own training loop, from now on until the end of a `with`.

        with sf.hold(net, masks):
            ...  # any loop, any optimizer

    Args:
        net: the network that is trained, or a wrapper of it (torch.compile, DataParallel, DDP); may also be wrapped later.
        masks: from `prune`, `recover` or `load`; or any dict of layer name -> bool mask, True = keep, which holds weights
            alone: norms go on averaging hidden features that it prunes.
    Returns:
        a handle: a context manager with `zero_()`, `remove()`, and `trainer_callback()` for the Trainer of transformers.
    Raises:
        InvalidSetting: masks do not fit the network, or another module keeps a pruned weight dense.
    """
    net = unwrap(net)
    require_network(net)
    masks = masks_left(net, masks)
    require_masks_of(net, masks)
    require_none_dense(net, masks, "masks", "given")
    if isinstance(masks, Masks) and masks.pruning is not None:
        hook_units(net, ties_of(net, masks, masks.pruning.pattern), masks)
    return HeldMasks(net, masks)


class HeldMasks:
    """The handle returned by `hold`. Pruned weights are zeroed immediately, after each step of any torch optimizer, before each
    forward and state dict of the network, and at the end, so momentum and weight decay cannot regrow them. Copies of the
    network are not held.
    """

    def __init__(self, net: nn.Module, masks: Mapping[str, Tensor]) -> None:
        self._net = net
        self._layers = {name: net.get_submodule(name) for name in masks}
        self._pruned = {name: like_weight(~mask, layer_weight(self._layers[name])) for name, mask in masks.items()}
        self._stepped: dict[int, set[int]] | None = {}  # optimizers, and the parameters that they hold
        self._handles: list[RemovableHandle] = []
        self.zero_()  # may fail, so before registering hooks on the network and on every optimizer
        self._handles = [
            net.register_forward_pre_hook(self._before, prepend=True),
            net.register_state_dict_pre_hook(self._before),
            register_optimizer_step_post_hook(torch.compiler.disable(self._after_step)),
        ]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def __getstate__(self) -> dict[str, Any]:
        """Hooks in copies and pickles of the network do nothing."""
        return vars(self) | {"_handles": [], "_pruned": {}}

    @torch.no_grad()
    def zero_(self) -> None:
        """Zero every pruned weight in place, even if it is NaN or infinite."""
        for name, pruned in self._pruned.items():
            weight = layer_weight(self._layers[name])
            if pruned.device != weight.device:
                pruned = self._pruned[name] = pruned.to(weight.device)
            # Via `data`: autograd must not see a modification between two forwards of one backward.
            weight.data.masked_fill_(pruned, 0.0)

    def remove(self) -> None:
        """Zero a last time and release the network."""
        if self._handles:
            self.zero_()
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def trainer_callback(self) -> Any:
        """A `transformers.TrainerCallback` that zeroes after every step and removes this handle when training ends."""
        from transformers import TrainerCallback

        held = self

        class HoldMasksCallback(TrainerCallback):
            def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
                held.zero_()

            def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
                held.remove()

        return HoldMasksCallback()

    def _before(self, net: nn.Module, *_: object) -> None:
        if net is self._net and self._handles and not torch.compiler.is_compiling():  # then only steps zero
            self.zero_()

    def _after_step(self, optimizer: Optimizer, *_: object) -> None:
        self.zero_()
        self._look_for_orphans(optimizer)

    def _look_for_orphans(self, optimizer: Optimizer) -> None:
        """Once an optimizer of this network steps again, and all others had their turn, warn of weights that none of them holds:
        `prune` replaces the packed weights of an attention, which an earlier optimizer goes on training.
        """
        held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        if self._stepped is None or held.isdisjoint(map(id, self._net.parameters())):
            return
        if id(optimizer) not in self._stepped:
            self._stepped[id(optimizer)] = held
            return
        known = set().union(*self._stepped.values())
        weights = {name: layer_weight(layer) for name, layer in self._layers.items()}
        orphans = [name for name, one in weights.items() if one.grad is not None and id(one) not in known]
        if orphans:
            note = "the optimizer (%s) does not hold the weights of %s, which are not trained: make it after sf.prune"
            log.warning(note, type(optimizer).__name__, ", ".join(orphans))
        self._stepped = None
