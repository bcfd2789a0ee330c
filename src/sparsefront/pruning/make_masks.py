"""From importance to masks: run a pattern's steps, each decided by an allocation across the layers."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from sparsefront.allocation.base import Allocation, GlobalAllocation, MeasuringAllocation
from sparsefront.allocation.per_layer import PerLayer
from sparsefront.errors import InvalidSetting
from sparsefront.importance.base import Importance
from sparsefront.importance.magnitude import Magnitude
from sparsefront.masks.groups import Groups, select_in_layer
from sparsefront.masks.weight_view import Permutation, as_matrix
from sparsefront.networks import require_finite
from sparsefront.patterns.base import Pattern, new_mask, require_divisible, step_groups, validate_sparsity
from sparsefront.patterns.ties import Tie
from sparsefront.patterns.width import mask_tied
from sparsefront.pruning.calibration import Accumulator, Calibration, score_weights
from sparsefront.pruning.mask_spec import MaskSpec, fix_spec
from sparsefront.schedule.base import Schedule
from sparsefront.schedule.one_shot import OneShot
from sparsefront.tasks.base import Batch, Task


@dataclass(frozen=True)
class PruningSettings:
    """How masks are made.

    Args:
        pattern: which weights are kept or pruned together.
        sparsity: the final one, a fraction of zeros in [0, 1).
        importance, allocation: what is worth keeping, and how much to prune in each layer.
        schedule: when masks change on the way to the final sparsity.
    """

    pattern: Pattern
    sparsity: float
    importance: Importance = field(default_factory=Magnitude)
    allocation: Allocation = field(default_factory=PerLayer)
    schedule: Schedule = field(default_factory=OneShot)

    @property
    def reads_inputs(self) -> str | None:
        """The option that reads layer inputs, for messages; None if none does."""
        if self.importance.source == "inputs":
            return f"importance={self.importance.name}"
        return f"allocation={self.allocation.name}" if isinstance(self.allocation, MeasuringAllocation) else None

    @property
    def first_sparsity(self) -> float:
        """Sparsity of the schedule's first masks."""
        return self.schedule.sparsity_at(0.0, self.sparsity)


# The interface of a latency search, which decides the pattern, permutation and sparsity of every layer.


class SearchRecord(Protocol):
    """What a search found."""

    @property
    def layers(self) -> Mapping[str, Mapping[str, Any]]:
        """Layer -> its pattern and sparsity, and the search's data about them."""
        ...

    def to_json(self) -> dict[str, Any]:
        """JSON-able."""
        ...


class LayoutSearch(Protocol):
    """A search such as `latency_search.search.Search`."""

    def spec(
        self,
        task: Task,
        scores: Mapping[str, Tensor],
        pruning: PruningSettings,
        calibration: Calibration,
        inputs: dict[str, Tensor] | None,
        tell: Callable[[str], None],
    ) -> tuple[MaskSpec, SearchRecord]:
        """Run the search.

        Args:
            task: the dense network and its loss.
            scores: prunable layer -> float32 [N, K].
            pruning: with an allocation that measures.
            calibration: opens a loader of training batches.
            inputs: keyword arguments of the network, if `sf.prune` got any.
            tell: receives a line per step.
        Raises:
            InvalidSetting: the target cannot be reached; names the full key.
        """
        ...


def make_masks(
    importance: Mapping[str, Tensor],
    pattern: Pattern,
    allocation: Allocation,
    sparsity: float,
    *,
    final_sparsity: float | None = None,
    previous: Mapping[str, Tensor] | None = None,
    nested: bool = True,
    spec: MaskSpec | None = None,
    weight_shapes: Mapping[str, tuple[int, ...]] | None = None,
    ties: Sequence[Tie] = (),
) -> dict[str, Tensor]:
    """Make the masks of all layers at a sparsity.

    Args:
        importance: layer name -> [N, K], any float dtype, on one device, larger = more worth keeping. Only layers that
            the pattern can divide (`pattern.unsupported_reason` is None); sparsity refers to their weights.
        pattern: of layers to which `spec` assigns no pattern of their own.
        allocation: how much to prune in each layer.
        sparsity: fraction of zeros, in [0, 1).
        final_sparsity: the end of the schedule; None = `sparsity`.
        previous: layer name -> bool, [N, K] or shaped like the weight: masks that this function made earlier in the same
            schedule. The result keeps no weight that they prune. None: nothing is pruned yet.
        nested: False: `previous` is ignored, and the masks have the structure of `sparsity` itself (see
            `Schedule.masks_nest`). Layer sparsities set by the allocation still follow from the final sparsity.
        spec: fixed for the whole schedule; None: fixed now, from this importance.
        weight_shapes: layer name -> the weight's own shape if it is not [N, K] (convolutions).
        ties: only for patterns that tie layers; each layer is in at least one.
    Returns:
        layer name -> bool [N, K] on importance's device, in the network's order, True = keep; deterministic. A free pattern
        prunes at most `sparsity`, and less by less than one group.
    Raises:
        InvalidSetting: a sparsity that is out of range or that pattern or allocation cannot express; a pattern whose steps
            make a mask that it rejects.
        ValueError: importance is not finite, or the pattern cannot divide a layer; names the layer.
    """
    final = sparsity if final_sparsity is None else final_sparsity
    validate_sparsity(sparsity)
    validate_sparsity(final)
    pattern.check_sparsity(final)
    allocation.check_sparsity(final)
    _require_divisible(importance, pattern, final)
    require_finite(importance)
    if spec is None:
        spec = fix_spec(importance, pattern, allocation, final, weight_shapes=weight_shapes)
    allowed = {layer: _allow(layer, values, previous if nested else None) for layer, values in importance.items()}
    if pattern.tied:
        masks = mask_tied(importance, pattern, ties, sparsity, final, allowed, getattr(allocation, "select", None))
    elif isinstance(allocation, GlobalAllocation):
        structure = final if nested else sparsity
        masks = _rank_together(importance, pattern, allocation, sparsity, structure, allowed, spec)
    else:
        masks = {
            layer: _layer_mask(layer, values, pattern, sparsity, final, allowed[layer], spec, nested=nested)
            for layer, values in importance.items()
        }
    if sparsity == final:  # before that, groups may still be whole
        _require_structure(masks, pattern, final, spec)
    return masks


def _layer_mask(
    layer: str,
    importance: Tensor,
    pattern: Pattern,
    sparsity: float,
    final: float,
    allowed: Tensor,
    spec: MaskSpec,
    *,
    nested: bool,
) -> Tensor:
    """The mask of a layer with its own sparsity. During a schedule, every layer has covered the same fraction of its way."""
    layer_final = spec.sparsity_of(layer, final)
    if layer_final == 0:
        return allowed
    now = layer_final if sparsity == final else layer_final * sparsity / final
    permutation = spec.permutation(layer)
    scores = permutation.apply(importance.float())
    structure = layer_final if nested else now
    own = spec.pattern_of(layer, pattern)
    return permutation.invert(own.layer_mask(scores, permutation.apply(allowed), now, structure))


def _rank_together(
    importance: Mapping[str, Tensor],
    pattern: Pattern,
    allocation: GlobalAllocation,
    sparsity: float,
    final: float,
    allowed: Mapping[str, Tensor],
    spec: MaskSpec,
) -> dict[str, Tensor]:
    """The masks of all layers, with each step decided over the whole network. `final` determines the structure."""
    permuted = {layer: spec.permutation(layer).apply for layer in importance}
    scores = {layer: permuted[layer](values.float()) for layer, values in importance.items()}
    allowed = {layer: permuted[layer](mask) for layer, mask in allowed.items()}
    numel = {layer: values.numel() for layer, values in importance.items()}
    masks = dict(allowed)
    per_layer = (pattern.steps(sparsity, (values.shape[0], values.shape[1]), final) for values in importance.values())
    for steps in zip(*per_layer, strict=True):  # the same step in every layer
        step_of = dict(zip(scores, steps, strict=True))
        groups: dict[str, Groups] = {}
        for layer, step in step_of.items():
            layer_groups = step_groups(step, scores[layer], masks[layer], allowed[layer])
            if layer_groups.keep_of_last is None:
                groups[layer] = layer_groups
            else:  # windows are decided independently: no ranking, and no need to keep the scores of other layers
                survivors = select_in_layer(layer_groups, numel[layer], step.target)
                masks[layer] = new_mask(step, survivors, scores[layer], masks[layer], allowed[layer])
        selections = allocation.select(groups, numel, steps[0].target) if groups else {}
        ranked = list(groups)
        del groups  # free the scores of the whole network before making the new masks
        for layer in ranked:
            masks[layer] = new_mask(step_of[layer], selections.pop(layer), scores[layer], masks[layer], allowed[layer])
    return {layer: spec.permutation(layer).invert(mask) for layer, mask in masks.items()}


def _allow(layer: str, importance: Tensor, previous: Mapping[str, Tensor] | None) -> Tensor:
    """The weights that may be kept: bool [N, K]."""
    if previous is None:
        return torch.ones_like(importance, dtype=torch.bool)
    return as_matrix(previous[layer]).to(importance.device)


def _require_structure(masks: Mapping[str, Tensor], pattern: Pattern, sparsity: float, spec: MaskSpec) -> None:
    """`require_structure` for all layers: a user's pattern may be wrong."""
    for layer, mask in masks.items():
        own, of_layer = spec.pattern_of(layer, pattern), spec.sparsity_of(layer, sparsity)
        if of_layer > 0:
            require_structure(layer, mask, own, of_layer, spec.permutation(layer))


def require_structure(layer: str, mask: Tensor, pattern: Pattern, sparsity: float, permutation: Permutation) -> None:
    """Raise InvalidSetting if a layer's mask [N, K], in the network's order, violates the pattern that made it."""
    try:
        pattern.check(mask, sparsity, permutation)
    except ValueError as error:
        raise InvalidSetting("pattern", pattern.name, f"has made a mask of {layer} that breaks it: {error}") from error


def _require_divisible(importance: Mapping[str, Tensor], pattern: Pattern, sparsity: float) -> None:
    """Raise ValueError naming the first layer that the pattern cannot divide."""
    for layer, values in importance.items():
        try:
            require_divisible(pattern, tuple(values.shape), sparsity)
        except ValueError as error:
            raise ValueError(f"layer {layer}: {error}") from None


@dataclass(frozen=True, eq=False)
class MaskMaker:
    """Scores the task's network and makes masks, when called with a sparsity and the current masks.

    Args:
        pruning: how masks are made.
        task: the network and its loss, on the device where scores are wanted.
        layers: the layers to prune.
        spec: fixed before the first masks.
        open_loader, accumulator: see `score_weights`.
        ties: of the layers, for patterns that tie them.
    """

    pruning: PruningSettings
    task: Task
    layers: list[str]
    spec: MaskSpec
    open_loader: Callable[[], Iterable[Batch]]
    accumulator: Accumulator | None = None
    ties: Sequence[Tie] = ()

    def __call__(self, sparsity: float, previous: Mapping[str, Tensor] | None) -> dict[str, Tensor]:
        pruning = self.pruning
        scores = score_weights(
            self.task,
            self.layers,
            importance=pruning.importance,
            open_loader=self.open_loader,
            accumulator=self.accumulator,
        )
        return make_masks(
            scores,
            pruning.pattern,
            pruning.allocation,
            sparsity,
            final_sparsity=pruning.sparsity,
            previous=previous,
            nested=pruning.schedule.masks_nest,
            spec=self.spec,
            ties=self.ties,
        )
