"""Tied pruning of whole attention heads and hidden features across the layers that share them.

A head is a set of rows of query, key and value and of columns of the output projection. A hidden feature is a row of the
layer that computes it and a column of the layer that reads it; so is a channel inside a residual block of convolutions.
Biases of pruned units are never read. The result is a narrower dense network with the same function (`pruning.narrow`).
"""

import inspect
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from sparsefront.errors import InvalidSetting
from sparsefront.masks.groups import Groups, group_score, keep_best
from sparsefront.patterns.base import Pattern

NO_TIES = "no tied layers found: it is neither in an attention nor in a feed-forward block that is known"
Shapes = Mapping[str, tuple[int, int]]
Select = Callable[[Mapping[str, Groups], Mapping[str, int], float], dict[str, Tensor]]
"""Ranks the groups of all layers together; see `GlobalAllocation.select`."""


@dataclass(frozen=True)
class Tie:
    """Units (heads, hidden features, channels) that are kept or pruned in several layers at once.

    Args:
        outputs: layers that compute the units; unit i is their outputs i * size to (i + 1) * size - 1.
        inputs: the layer that reads them, in the same order.
        count: number of units.
        size: outputs per unit: the head dimension, or 1 for features and channels.
        attention: module that stores the number of heads; None for features and channels.
        heads: name of that attribute.
        norms: batch norms between outputs and inputs.
    """

    outputs: tuple[str, ...]
    inputs: str
    count: int
    size: int = 1
    attention: str | None = None
    heads: str = ""
    norms: tuple[str, ...] = ()

    @property
    def layers(self) -> tuple[str, ...]:
        return *self.outputs, self.inputs

    def weights_of_unit(self, shapes: Shapes) -> int:
        """Number of weights in one unit; `shapes`: layer -> [N, K]."""
        return sum(math.prod(shapes[layer]) for layer in self.layers) // self.count


# Known blocks, recognized by the names of their submodules.


class _Attention(NamedTuple):
    """Paths below a module: the three input projections, the output projection, and the attributes with the head counts."""

    outputs: tuple[str, str, str]
    inputs: str
    owner: str
    heads: str
    size: str | None


ATTENTIONS = (
    _Attention(
        ("self.query", "self.key", "self.value"), "output.dense", "self", "num_attention_heads", "attention_head_size"
    ),  # BERT, RoBERTa
    _Attention(
        ("attention.query", "attention.key", "attention.value"),
        "output.dense",
        "attention",
        "num_attention_heads",
        "attention_head_size",
    ),
    _Attention(("q", "k", "v"), "o", "", "num_attention_heads", "attention_head_size"),  # MPNet
    _Attention(("q_lin", "k_lin", "v_lin"), "out_lin", "", "n_heads", "attention_head_size"),  # DistilBERT
    _Attention(("q_proj", "k_proj", "v_proj"), "o_proj", "", "num_attention_heads", "head_dim"),  # ViT
    _Attention(("q", "k", "v"), "out", "", "heads", None),  # our own
)
# In these packages, attention reads only the number of heads from the module and everything else from tensor shapes.
PACKAGES_OF_ATTENTIONS = ("transformers", "sparsefront")
FEED_FORWARDS = (
    (("intermediate.dense",), "output.dense"),
    (("lin1",), "lin2"),
    (("fc1",), "fc2"),
    (("gate_proj", "up_proj"), "down_proj"),
)
RESIDUAL_BLOCKS = (("conv1", "bn1", "conv2"), ("conv2", "bn2", "conv3"))
PACKAGES_OF_RESIDUAL_BLOCKS = ("torchvision", "timm")
# Modules in which feature i of the output depends on feature i of the input only.
ELEMENTWISE = (
    *(nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.GELU, nn.SiLU, nn.ELU, nn.Hardswish, nn.Tanh, nn.Sigmoid, nn.Softplus),
    *(nn.Identity, nn.Dropout, nn.Dropout2d, nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d),
)
BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d)


def find_ties(net: nn.Module, layers: Iterable[str]) -> list[Tie]:
    """Find the ties among these layers of a network, in module order; a tie counts only if it contains no other layer.

    Args:
        net: may be on the meta device: only names and shapes are read.
        layers: names of Linear and Conv2d layers.
    """
    among = set(layers)
    users = Counter(id(own) for module in net.modules() for own in module._parameters.values())
    ties: list[Tie] = []
    makes: set[str] = set()
    reads: set[str] = set()
    for name, module in net.named_modules():
        for tie in (*_heads(name, module), *_features(name, module), *_of_residual_block(name, module)):
            parts = [net.get_submodule(layer) for layer in tie.layers]
            shared = any(users[id(part._parameters.get("weight"))] > 1 for part in parts)
            if shared or not among.issuperset(tie.layers) or makes & set(tie.outputs) or tie.inputs in reads:
                continue
            makes.update(tie.outputs)
            reads.add(tie.inputs)
            ties.append(tie)
    return ties


def _heads(name: str, module: nn.Module) -> Iterator[Tie]:
    if type(module).__module__.partition(".")[0] not in PACKAGES_OF_ATTENTIONS:
        return
    for kind in ATTENTIONS:
        owner = _part(module, kind.owner)
        projections = [_part(module, path) for path in (*kind.outputs, kind.inputs)]
        heads = getattr(owner, kind.heads, None)
        if owner is None or not isinstance(heads, int) or any(type(layer) is not nn.Linear for layer in projections):
            continue
        *made, read = projections
        width = made[0].out_features  # type: ignore[union-attr]
        size = width // heads if kind.size is None else getattr(owner, kind.size, 0)
        sides = {read.in_features, *(layer.out_features for layer in made)}  # type: ignore[union-attr]
        if heads > 1 and sides == {heads * size} and _has_nothing_per_head(owner, projections):
            outputs = tuple(_below(name, path) for path in kind.outputs)
            attention = _below(name, kind.owner)
            yield Tie(outputs, _below(name, kind.inputs), heads, size, attention, kind.heads)


def _has_nothing_per_head(owner: nn.Module, projections: Sequence[nn.Module | None]) -> bool:
    """Whether only the projections have weights and `forward` takes no relative positions, whose bias would be per head.
    MPNet's `position_bias` is allowed: `pruning.narrow` selects its heads.
    """
    others = [part for part in owner.children() if not any(part is projection for projection in projections)]
    asked = inspect.signature(type(owner).forward).parameters
    return not (
        any(True for part in others for _ in part.parameters())
        or list(owner.parameters(recurse=False))
        or any(argument.startswith("rel") for argument in asked)
    )


def _features(name: str, module: nn.Module) -> Iterator[Tie]:
    if isinstance(module, nn.Sequential):
        yield from _in_sequence(name, module)
        return
    encoder = isinstance(module, nn.TransformerEncoderLayer | nn.TransformerDecoderLayer)
    for outputs, inputs in ((("linear1",), "linear2"),) if encoder else FEED_FORWARDS:
        made, read = [_part(module, path) for path in outputs], _part(module, inputs)
        if any(type(layer) is not nn.Linear for layer in (*made, read)):
            continue
        beside = _part(module, outputs[0].rpartition(".")[0])
        assert beside is not None and isinstance(read, nn.Linear)
        others = [part for part in beside.children() if not any(part is layer for layer in (*made, read))]
        if not encoder and any(True for part in others for _ in part.parameters()):
            continue  # for example a norm over the hidden features
        if {layer.out_features for layer in made} == {read.in_features}:  # type: ignore[union-attr]
            yield Tie(tuple(_below(name, path) for path in outputs), _below(name, inputs), read.in_features)


def _in_sequence(name: str, module: nn.Sequential) -> Iterator[Tie]:
    """Consecutive layers of one type with only elementwise modules and batch norms in between."""
    if type(module).forward is not nn.Sequential.forward:
        return
    before, made, norms = "", None, []  # type: ignore[var-annotated]
    for child, part in module._modules.items():
        if type(part) in (nn.Linear, nn.Conv2d):
            if made is not None and type(made) is type(part) and _width(made) == _read_width(part):
                yield Tie((_below(name, before),), _below(name, child), _width(made), norms=tuple(norms))
            before, made, norms = child, part, []
        elif isinstance(part, BATCH_NORMS):
            norms.append(_below(name, child))
        elif not isinstance(part, ELEMENTWISE):
            made = None


def _of_residual_block(name: str, module: nn.Module) -> Iterator[Tie]:
    """Channels inside a residual block with batch norms; its first inputs and last outputs belong to the whole network."""
    if type(module).__module__.partition(".")[0] not in PACKAGES_OF_RESIDUAL_BLOCKS:
        return
    known = {*sum(RESIDUAL_BLOCKS, ()), "bn3", "downsample"}
    if any(list(part.parameters()) for child, part in module.named_children() if child not in known):
        return
    for made, norm, read in RESIDUAL_BLOCKS:
        layers = _part(module, made), _part(module, read)
        if any(type(layer) is not nn.Conv2d for layer in layers) or not isinstance(_part(module, norm), BATCH_NORMS):
            continue
        if all(layer.groups == 1 for layer in layers):  # type: ignore[union-attr]
            count = _width(layers[0])
            yield Tie((_below(name, made),), _below(name, read), count, norms=(_below(name, norm),))


def _width(layer: nn.Module | None) -> int:
    return len(layer.weight)  # type: ignore[union-attr,arg-type]


def _read_width(layer: nn.Module) -> int:
    return layer.weight.shape[1]  # type: ignore[union-attr,return-value]


def _part(module: nn.Module | None, path: str) -> nn.Module | None:
    for step in path.split(".") if path else ():
        module = None if module is None else module._modules.get(step)
    return module


def _below(name: str, path: str) -> str:
    return f"{name}.{path}".strip(".")


# How many units to prune.


def untied_reasons(ties: Iterable[Tie], layers: Iterable[str]) -> dict[str, str]:
    """The layers without a tie -> why they stay dense."""
    tied = {layer for tie in ties for layer in tie.layers}
    return {layer: NO_TIES for layer in layers if layer not in tied}


def units_to_prune(ties: Sequence[Tie], shapes: Shapes, sparsity: float) -> list[int]:
    """Number of units to prune in each tie so that every block loses the same share; at least one unit stays.

    The number of heads is rounded to the nearest integer in each attention: 12 at 0.3 lose 4. Hidden features and
    channels then lose the share that brings the total as close to `sparsity` as possible from below.

    Args:
        shapes: layer -> [N, K], for all layers of the ties.
        sparsity: over all weights of these layers, in [0, 1).
    Raises:
        InvalidSetting: a sparsity above 0 that rounds to no unit.
    """

    def units(share: float) -> list[int]:
        return [
            min(
                tie.count - 1,
                math.floor(sparsity * tie.count + 0.5 if tie.attention is not None else share * tie.count),
            )
            for tie in ties
        ]

    low, high = 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if _sparsity(ties, shapes, units(middle)) <= sparsity + 1e-9 else (low, middle)
    counts = units(high if _sparsity(ties, shapes, units(high)) <= sparsity + 1e-9 else low)
    if sparsity > 0 and not any(counts):
        least = min((1 / tie.count for tie in ties), default=1.0)
        allowed = f"rounds to no change: the smallest share of a layer that goes is {least:.4g}, one unit of it"
        raise InvalidSetting("sparsity", sparsity, allowed)
    return counts


def planned_sparsities(ties: Sequence[Tie], shapes: Shapes, sparsity: float) -> dict[str, float]:
    """Layer -> its sparsity after `units_to_prune`."""
    return _layer_sparsities(ties, shapes, units_to_prune(ties, shapes, sparsity))


def _overlap(ties: Sequence[Tie]) -> bool:
    """Whether any layer belongs to two ties, computing units of one and reading those of the other."""
    return any(number > 1 for number in Counter(layer for tie in ties for layer in tie.layers).values())


def _layer_sparsities(ties: Sequence[Tie], shapes: Shapes, gone: Sequence[int]) -> dict[str, float]:
    density = dict.fromkeys(shapes, 1.0)
    for tie, units in zip(ties, gone, strict=True):
        for layer in tie.layers:
            density[layer] *= 1 - units / tie.count
    return {layer: 1 - layer_density for layer, layer_density in density.items()}


def _sparsity(ties: Sequence[Tie], shapes: Shapes, gone: Sequence[int]) -> float:
    own = _layer_sparsities(ties, shapes, gone)
    return sum(share * math.prod(shapes[layer]) for layer, share in own.items()) / sum(map(math.prod, shapes.values()))


# Which units to prune.


def tied_masks(
    importance: Mapping[str, Tensor],
    pattern: Pattern,
    ties: Sequence[Tie],
    sparsity: float,
    final: float,
    allowed: Mapping[str, Tensor],
    select: Select | None,
) -> dict[str, Tensor]:
    """Compute the masks of tied layers: either every block loses the same share, or all units are ranked together. During a
    schedule, every tie has lost the same fraction of what it will lose.

    Args:
        importance: layer -> float [N, K].
        pattern: its `aggregate` scores a unit.
        ties: of these layers; each layer is in one or two.
        sparsity, final: now, and at the end of the schedule.
        allowed: layer -> bool [N, K]: the earlier masks.
        select: ranks all units together; None: every block loses the same share.
    Returns:
        layer -> bool [N, K].
    """
    shapes = {layer: (values.shape[0], values.shape[1]) for layer, values in importance.items()}
    aggregate = getattr(pattern, "aggregate", "rms")
    scores = [
        unit_scores(tie, importance, aggregate).masked_fill_(~_units_left(tie, allowed), -math.inf) for tie in ties
    ]
    if select is None:
        pruned_counts = units_to_prune(ties, shapes, final)
        share = _share_of_way(ties, shapes, pruned_counts, sparsity, final)
        now = [math.floor(units * share + 1e-9) for units in pruned_counts]
        return _masks_of_units(ties, [_best_units(*pair) for pair in zip(scores, now, strict=True)], shapes)
    groups = {
        str(place): _unit_groups(tie, own, shapes) for place, (tie, own) in enumerate(zip(ties, scores, strict=True))
    }
    numel = {str(place): tie.count * tie.weights_of_unit(shapes) for place, tie in enumerate(ties)}
    low, high = 0.0, 1.0
    for _ in range(16 if _overlap(ties) else 0):  # losses overlap in a layer of two ties: less than their sum
        middle = (low + high) / 2
        pruned_counts = [int((~units).sum()) for units in select(groups, numel, middle).values()]
        low, high = (middle, high) if _sparsity(ties, shapes, pruned_counts) <= sparsity else (low, middle)
    unit_masks = select(groups, numel, low if _overlap(ties) else sparsity)
    return _masks_of_units(ties, list(unit_masks.values()), shapes)


def _share_of_way(ties: Sequence[Tie], shapes: Shapes, gone: Sequence[int], sparsity: float, final: float) -> float:
    """The share of `gone`, units of each tie, that a schedule to `final` has pruned at `sparsity` of all weights."""
    if sparsity == final or not _overlap(ties):
        return sparsity / final if final else 0.0
    low, high = 0.0, 1.0
    for _ in range(16):  # losses overlap in a layer of two ties: less than their sum
        middle = (low + high) / 2
        now = [math.floor(units * middle + 1e-9) for units in gone]
        low, high = (middle, high) if _sparsity(ties, shapes, now) <= sparsity else (low, middle)
    return low


def unit_scores(tie: Tie, importance: Mapping[str, Tensor], aggregate: str) -> Tensor:
    """Score each unit over all of its tied weights; returns float32 [units]. `aggregate`: see `group_score`.

    Args:
        importance: layer -> float [N, K]; the columns of a convolution are ordered (kh, kw, C_in).
    """
    parts = [importance[layer].float().reshape(tie.count, -1) for layer in tie.outputs]
    read = importance[tie.inputs].float()
    parts.append(read.reshape(len(read), -1, tie.count, tie.size).permute(2, 0, 1, 3).reshape(tie.count, -1))
    weights = torch.cat(parts, dim=1)
    return group_score(weights, (1,), weights.shape[1], aggregate)


def _unit_groups(tie: Tie, scores: Tensor, shapes: Shapes) -> Groups:
    """The units of a tie as groups for a global ranking; the best one must stay."""
    stays = torch.zeros_like(scores, dtype=torch.bool)
    stays[scores.argmax()] = True
    return Groups(scores, tie.weights_of_unit(shapes), stays=stays)


def _best_units(scores: Tensor, gone: int) -> Tensor:
    """Bool [units]: all but the `gone` lowest, where units at -inf, already pruned, count toward `gone`."""
    before = int((scores == -math.inf).sum())
    (unit_mask,) = keep_best([Groups(scores, 1)], max(0, gone - before))
    return unit_mask


def _units_left(tie: Tie, masks: Mapping[str, Tensor]) -> Tensor:
    """Bool [units] that are still alive in masks [N, K]."""
    return masks[tie.outputs[0]].reshape(tie.count, -1).any(dim=1)


def _masks_of_units(ties: Sequence[Tie], kept: Sequence[Tensor], shapes: Shapes) -> dict[str, Tensor]:
    """Build layer -> bool [N, K] from the surviving units of each tie."""
    device = kept[0].device
    masks = {layer: torch.ones(shape, dtype=torch.bool, device=device) for layer, shape in shapes.items()}
    for tie, units in zip(ties, kept, strict=True):
        features = units.repeat_interleave(tie.size)
        for layer in tie.outputs:
            masks[layer] &= features[:, None]
        masks[tie.inputs] &= features.repeat(shapes[tie.inputs][1] // len(features))
    return masks
