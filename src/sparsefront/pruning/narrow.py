"""`sf.narrow`: turn a network with pruned heads, hidden features or channels into a narrower dense one.

Its outputs equal those of the masked network up to rounding, because pruned units are multiplied by zeros, biases included.
"""

import copy
import functools
import inspect
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sparsefront.errors import first_line
from sparsefront.masks.weight_view import as_matrix
from sparsefront.models.base import is_of_transformers
from sparsefront.networks import layer_weight, unwrapped
from sparsefront.patterns.width import Tie, find_ties
from sparsefront.pruning.masks import require_masks_of

log = logging.getLogger(__name__)
FEATURES_OF_CONFIG = ("intermediate_size", "hidden_dim", "ffn_dim")
HEADS_OF_CONFIG = ("num_attention_heads", "n_heads")


@dataclass(frozen=True)
class Narrowed:
    """The layers that became narrower.

    Args:
        layers: layer -> its new and old shape, as text: "[384, 768] of [768, 768]".
        not_in_config: why the network's transformers config cannot describe it; None if it does.
    """

    layers: dict[str, str] = field(default_factory=dict)
    not_in_config: str | None = None

    def __str__(self) -> str:
        lines = [f"{name}  {shapes}" for name, shapes in self.layers.items()] or ["nothing became narrower"]
        return "\n".join(lines)


def narrow(net: nn.Module, masks: Mapping[str, Tensor]) -> Narrowed:
    """Remove pruned heads, hidden features and channels from the network, in place.

    Linear and Conv2d layers, the batch norms between them and head counts become smaller. If a transformers config can
    describe the result, the network's config is updated, and `net.save_pretrained(folder)` writes what `from_pretrained`
    loads. Layers whose masks share no whole units are not changed.

    Args:
        net: masked: pruned weights are zero.
        masks: layer -> bool, [N, K] or shaped like the weight; from pattern channel with axis=width.
    Returns:
        which layers became narrower: `print(narrowed)`.
    Raises:
        InvalidSetting: masks do not belong to the network.
    """
    net = unwrapped(net)
    require_masks_of(net, masks)
    layers, found = _narrow_all(net, masks)
    return Narrowed(layers, _describe(net, found) if found else None)


def narrow_layers(net: nn.Module, masks: Mapping[str, Tensor]) -> dict[str, str]:
    """Like `narrow`, for validated masks and without updating the config.

    Returns:
        layer that became narrower -> why it runs no sparse kernel.
    """
    return {name: f"a narrower dense layer, {shapes}" for name, shapes in _narrow_all(net, masks)[0].items()}


def save_narrower(folder: Path, net: nn.Module, masks: Mapping[str, Tensor]) -> None:
    """`narrow`, then `save_pretrained` into the folder if transformers can load the result; logs which is the case."""
    if (why := narrow(net, masks).not_in_config) is not None:
        log.info("export: sf.load makes the narrower network; transformers cannot open it: %s", why)
        return
    net.save_pretrained(folder)  # type: ignore[operator]  # it is of transformers
    log.info("export: transformers opens the narrower network, in folder %s", folder.name)


def _narrow_all(net: nn.Module, masks: Mapping[str, Tensor]) -> tuple[dict[str, str], list[tuple[Tie, Tensor]]]:
    """`Narrowed.layers`, and the ties that lost units with those that remain, bool [units]."""
    matrices = {name: as_matrix(mask) for name, mask in masks.items()}
    found = [(tie, units) for tie in find_ties(net, masks) if (units := _units(tie, matrices)) is not None]
    before = {layer: list(layer_weight(net.get_submodule(layer)).shape) for tie, _ in found for layer in tie.layers}
    for tie, units in found:
        _narrow(net, tie, units)
    shapes = {layer: f"{list(layer_weight(net.get_submodule(layer)).shape)} of {old}" for layer, old in before.items()}
    return shapes, found


def _units(tie: Tie, masks: Mapping[str, Tensor]) -> Tensor | None:
    """Bool [units]: those that any layer uses; None if all are used, or the layers' masks do not share whole units."""
    rows = [masks[layer].any(dim=1).view(tie.count, tie.size) for layer in tie.outputs]
    read = masks[tie.inputs].any(dim=0).view(-1, tie.count, tie.size)
    units = rows[0].any(dim=1)
    whole = units[:, None].expand(-1, tie.size)
    if bool(units.all()) or not bool(units.any()):
        return None
    return units if all(side.equal(whole) for side in (*rows, *read)) else None


@torch.no_grad()
def _narrow(net: nn.Module, tie: Tie, units: Tensor) -> None:
    kept = units.repeat_interleave(tie.size).nonzero().flatten()
    for name in tie.outputs:
        layer: Any = net.get_submodule(name)
        _keep(layer, ("weight", "bias"), kept, 0)
        setattr(layer, "out_features" if isinstance(layer, nn.Linear) else "out_channels", len(kept))
    for name in tie.norms:
        norm: Any = net.get_submodule(name)
        _keep(norm, ("weight", "bias", "running_mean", "running_var"), kept, 0)
        norm.num_features = len(kept)
    reader: Any = net.get_submodule(tie.inputs)
    _keep(reader, ("weight",), kept, 1)
    setattr(reader, "in_features" if isinstance(reader, nn.Linear) else "in_channels", len(kept))
    if tie.attention is None:
        return
    attention: Any = net.get_submodule(tie.attention)
    setattr(attention, tie.heads, int(units.sum()))
    if hasattr(attention, "all_head_size"):
        attention.all_head_size = len(kept)
    if "position_bias" in inspect.signature(type(attention).forward).parameters:
        heads = units.nonzero().flatten().to(layer_weight(reader).device)
        attention.register_buffer("kept_heads", heads, persistent=False)
        attention.__class__ = _with_kept_heads(type(attention))  # type: ignore[arg-type]  # classes have a hash


def _keep(module: nn.Module, names: tuple[str, ...], kept: Tensor, dim: int) -> None:
    for name in names:
        tensor = getattr(module, name, None)
        if tensor is None:
            continue
        narrower = tensor.index_select(dim, kept.to(tensor.device))
        if isinstance(tensor, nn.Parameter):
            narrower = nn.Parameter(narrower, requires_grad=tensor.requires_grad)
        setattr(module, name, narrower)


@functools.cache
def _with_kept_heads(kind: type[nn.Module]) -> type[nn.Module]:
    """A subclass of the attention that selects its heads from a position bias [..., heads, T, T] shared by all blocks."""

    def forward(
        self: Any, hidden_states: Tensor, attention_mask: Any = None, position_bias: Any = None, **others: Any
    ) -> Any:
        if position_bias is not None:
            position_bias = position_bias.index_select(-3, self.kept_heads)
        return kind.forward(self, hidden_states, attention_mask, position_bias, **others)

    return type(kind.__name__, (kind,), {"forward": forward, "__module__": kind.__module__})


def _describe(net: nn.Module, found: list[tuple[Tie, Tensor]]) -> str | None:
    """Update the network's config if a network built from it has the same shapes; otherwise return why it cannot describe it."""
    if not is_of_transformers(net):
        return f"{type(net).__name__} has no configuration of transformers"
    config: Any = net.config
    changes: dict[str, int] = {}
    for tie, units in found:
        names, left = FEATURES_OF_CONFIG if tie.attention is None else HEADS_OF_CONFIG, int(units.sum())
        named = next((name for name in names if getattr(config, name, None) == tie.count), None)
        if named is None or changes.setdefault(named, left) != left:
            return f"{type(config).__name__} holds one number of {'features' if tie.attention is None else 'heads'} for all"
        if tie.attention is not None:
            changes["head_dim"] = tie.size
    described = copy.deepcopy(config)
    for name, value in changes.items():
        setattr(described, name, value)
    try:
        with torch.device("meta"):
            built = type(net)(described)
    except Exception as error:  # from user networks, or configs that validate their numbers
        return f"{type(config).__name__} does not allow it: {first_line(error)}"
    own = {name: tensor.shape for name, tensor in net.state_dict().items()}
    if own != {name: tensor.shape for name, tensor in built.state_dict().items()}:
        what = "the width of a head follows from the number of heads" if "head_dim" in changes else "blocks differ"
        return f"{type(config).__name__} cannot describe it: {what}"
    net.config = described  # type: ignore[assignment]  # another network may share the old one
    return None
