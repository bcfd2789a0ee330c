"""The structure of a smaller dense network: which blocks and which units of tied layers a larger one lost, in order."""

import copy
import functools
import inspect
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from sparsefront.errors import InvalidSetting, first_line
from sparsefront.models.base import is_of_transformers
from sparsefront.networks import layer_weight, remove_blocks
from sparsefront.patterns.hidden import find_hidden_ties
from sparsefront.patterns.ties import Tie, features_of, find_ties

log = logging.getLogger(__name__)
FEATURES_OF_CONFIG = ("intermediate_size", "hidden_dim", "ffn_dim")
# configurations with a width of heads, whose hidden size scales nothing, as it does in Gemma
HIDDEN_IS_SHAPE = ("LlamaConfig", "MistralConfig", "Qwen3Config", "SmolLM3Config")
HEADS_OF_CONFIG = ("num_attention_heads", "n_heads")
TOTALS_OF_HEADS = (
    "all_head_size",
    "split_size",
    "attn_dim",
    "inner_dim",
)  # attributes of attentions: heads times their size
SIZES = (
    "hidden_dim",
    "embed_dim",
    "num_features",
    "head_hidden_size",
)  # attributes of modules with tokens or positions
RECORDED = "_sparsefront_removals"  # attribute of a network that became smaller
ZEROED = "_sparsefront_zeroed"  # attribute of a network whose pruned units are still in it


@dataclass(frozen=True)
class Removal:
    """What one pruning took out of a network.

    Args:
        blocks: as in `networks.remove_blocks`.
        units: layer that reads units -> those that are left, ascending; layers with all of theirs are absent.
        layers: among which ties are found (`patterns.ties.find_ties`).
    """

    blocks: Mapping[str, str | None] = field(default_factory=dict)
    units: Mapping[str, Sequence[int]] = field(default_factory=dict)
    layers: Sequence[str] = ()


Structure = tuple[Removal, ...]
"""Turns a network into a smaller one; empty if nothing was removed."""


def structure_of(net: nn.Module) -> Structure:
    """What was removed from a network since it was built."""
    structure: Structure = net.__dict__.get(RECORDED, ())
    return structure


def record_removal(net: nn.Module, removal: Removal) -> None:
    """Remember what was removed, in the network, so that later masks know what they are of."""
    net.__dict__[RECORDED] = (*structure_of(net), removal)


def apply_structure(net: nn.Module, structure: Structure) -> None:
    """Remove from a larger network what another of its architecture lost, in place; no effect if it lost that already.

    Args:
        net: on any device, meta included.
    Raises:
        InvalidSetting: a network of another architecture.
    """
    for removal in structure if structure_of(net) != structure else ():
        remove_blocks(net, removal.blocks)
        module_names = set(dict(net.named_modules()))
        layers = [layer for layer in removal.layers if layer in module_names]
        ties = find_ties(net, layers) if removal.units else []
        if removal.units.keys() - {tie.reader for tie in ties}:
            ties += find_hidden_ties(net, layers, ties)
        tie_units = [(tie, _mark_units(tie, removal.units[tie.reader])) for tie in ties if tie.reader in removal.units]
        if len(tie_units) < len(removal.units):
            missing = next(iter(removal.units.keys() - {tie.reader for tie, _ in tie_units}))
            raise InvalidSetting("net", type(net).__name__, f"is another network: {missing} reads no units that may go")
        for tie, units in tie_units:
            remove_units(net, tie, units)
        if tie_units:
            describe_units(net, tie_units)
        record_removal(net, removal)


def _mark_units(tie: Tie, units: Sequence[int]) -> Tensor:
    left = torch.zeros(tie.count, dtype=torch.bool)
    if not units or min(units) < 0 or max(units) >= tie.count:
        raise InvalidSetting("net", tie.reader, f"reads {tie.count} units, and not those that are left of another")
    left[list(units)] = True
    return left


def structure_to_json(structure: Structure) -> list[dict[str, Any]]:
    """JSON-able."""
    return [asdict(removal) for removal in structure]


def structure_from_json(content: Any) -> Structure:
    """Inverse of `structure_to_json`.

    Raises:
        ValueError: other content.
    """
    if not isinstance(content, list) or not all(map(_is_removal, content)):
        raise ValueError("holds no list of removals: blocks, units and layers")
    return tuple(Removal(**removal) for removal in content)


def _is_removal(content: Any) -> bool:
    if not isinstance(content, dict) or content.keys() != {"blocks", "units", "layers"}:
        return False
    blocks, units, layers = (content[key] for key in ("blocks", "units", "layers"))
    return (
        isinstance(blocks, dict)
        and all(left is None or isinstance(left, str) for left in blocks.values())
        and isinstance(units, dict)
        and all(isinstance(left, list) and all(type(unit) is int for unit in left) for left in units.values())
        and isinstance(layers, list)
        and all(isinstance(layer, str) for layer in layers)
    )


def record_zeros(net: nn.Module, masks: Mapping[str, Tensor]) -> None:
    """Remember how many weights of each layer were pruned with whole units."""
    net.__dict__[ZEROED] = {name: int((~mask).sum()) for name, mask in masks.items()}


def forget_zeros(net: nn.Module) -> None:
    """The units are out of the network now."""
    net.__dict__.pop(ZEROED, None)


def require_no_zeros(net: nn.Module, layers: Iterable[str]) -> None:
    """Raise InvalidSetting if one of these layers still has zeros instead of units, which masks would not count."""
    zeroed: dict[str, int] = net.__dict__.get(ZEROED, {})
    for name in layers:
        pruned = zeroed.get(name, 0)
        if pruned and int((layer_weight(net.get_submodule(name)) == 0).sum()) >= pruned:
            allowed = (
                f"still has the units that were pruned of {name}: call sf.narrow(net, masks) before the next sf.prune"
            )
            raise InvalidSetting("net", type(net).__name__, allowed)


@torch.no_grad()
def remove_units(net: nn.Module, tie: Tie, units: Tensor) -> None:
    """Remove the units of a tie that are not in `units`, bool [units], from all of its layers, in place."""
    for name, sizes in tie.outputs.items():
        _keep(net.get_submodule(name), ("weight", "bias"), features_of(units, sizes), 0)
    for name in tie.between:
        _keep(net.get_submodule(name), ("weight", "bias", "running_mean", "running_var"), units, 0)
    for name, sizes in tie.inputs.items():
        reader = net.get_submodule(name)
        _keep(reader, ("weight",), features_of(units, sizes), 1)
    owners = [
        (id(own), module, key) for module in net.modules() for key, own in module._parameters.items() if tie.parts
    ]
    for name, dims in tie.parts.items():
        parent, _, own = name.rpartition(".")
        owner = net.get_submodule(parent)
        before = id(getattr(owner, own))
        for dim in dims:
            _keep(owner, (own,), units, dim)
        vars(owner).update({key: int(units.sum()) for key in SIZES if vars(owner).get(key) == tie.count})
        for module, key in [(module, key) for tensor, module, key in owners if tensor == before]:  # which may share it
            setattr(module, key, getattr(owner, own))
            _state_sizes(module)
    for name in tie.norms:
        if hasattr(net.get_submodule(name), "normalized_shape"):
            vars(net.get_submodule(name))["normalized_shape"] = (int(units.sum()),)
    if tie.attention is None:
        return
    attention: Any = net.get_submodule(tie.attention)
    if tie.heads:
        part, _, own = tie.heads.rpartition(".")
        if part:  # a configuration, which other modules share
            setattr(attention, part, copy.copy(getattr(attention, part)))
        setattr(getattr(attention, part) if part else attention, own, int(units.sum()) * tie.of_unit)
    if isinstance(vars(attention).get("num_key_value_heads"), int):
        attention.num_key_value_heads = int(units.sum())
    for name in TOTALS_OF_HEADS:
        if isinstance(vars(attention).get(name), int):
            setattr(attention, name, sum(sizes) * int(units.sum()))
    for table in tie.tables:
        parent, _, own = table.rpartition(".")
        _keep(attention.get_submodule(parent), (own,), units, -1)
    if "position_bias" in inspect.signature(type(attention).forward).parameters:
        heads = units.nonzero().flatten().to(layer_weight(reader).device)
        attention.register_buffer("kept_heads", heads, persistent=False)
        attention.all_heads = tie.count
        attention.__class__ = _with_kept_heads(type(attention))  # type: ignore[arg-type]  # classes have a hash


def _keep(module: nn.Module, names: tuple[str, ...], features: Tensor, dim: int) -> None:
    """`features`: bool, those that stay in these parameters and buffers."""
    for name in names:
        tensor = getattr(module, name, None)
        if tensor is None:
            continue
        narrower = tensor.index_select(dim, features.nonzero().flatten().to(tensor.device))
        if isinstance(tensor, nn.Parameter):
            narrower = nn.Parameter(narrower, requires_grad=tensor.requires_grad)
        setattr(module, name, narrower)
    _state_sizes(module)


def _state_sizes(module: Any) -> None:
    """Let a module's numbers of features follow from its weight."""
    sizes: dict[str, int] = {}
    weight: Any = getattr(module, "weight", None)
    if isinstance(module, nn.Linear):
        sizes = {"out_features": len(weight), "in_features": weight.shape[1]}
    elif isinstance(module, nn.Conv1d | nn.Conv2d):
        groups = len(weight) if module.groups > 1 else 1  # of one channel each
        sizes = {"groups": groups, "out_channels": len(weight), "in_channels": weight.shape[1] * groups}
    elif isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
        sizes = {"num_features": len(weight if module.running_mean is None else module.running_mean)}
    elif isinstance(module, nn.Embedding):
        sizes = {"embedding_dim": weight.shape[1]}
    vars(module).update(sizes)


@functools.cache
def _with_kept_heads(kind: Any) -> type[nn.Module]:
    """A subclass of the attention that selects its heads from a position bias [..., heads, T, T] shared by all blocks, and gives
    the bias of all heads to the next block if it gives any, as T5's.
    """
    signature = inspect.signature(kind.forward)

    def compute_bias(self: Any, *args: Any, **others: Any) -> Tensor:
        self.bias_of_all = kind.compute_bias(self, *args, **others)
        return self.bias_of_all.index_select(-3, self.kept_heads)

    def forward(self: Any, *args: Any, **others: Any) -> Any:
        call = signature.bind(self, *args, **others)
        bias = call.arguments.get("position_bias")
        if bias is not None:
            call.arguments["position_bias"] = bias.index_select(-3, self.kept_heads)
        outputs = kind.forward(*call.args, **call.kwargs)
        if not hasattr(kind, "compute_bias"):
            return outputs
        result, own, *rest = outputs
        if bias is None:  # that of the first block: computed, or zeros
            bias = vars(self).pop("bias_of_all", own[:, :1].expand(-1, self.all_heads, -1, -1))
        return result, bias, *rest

    methods = {"forward": forward} | ({"compute_bias": compute_bias} if hasattr(kind, "compute_bias") else {})
    return type(kind.__name__, (kind,), {**methods, "__module__": kind.__module__})


def describe_units(net: nn.Module, removed: Sequence[tuple[Tie, Tensor]]) -> str | None:
    """Update the network's config if a network built from it has the same shapes; otherwise return why it cannot describe it.

    Args:
        removed: ties that lost units -> bool [units] of those that are left.
    """
    if not is_of_transformers(net):
        return f"{type(net).__name__} has no configuration of transformers"
    config: Any = net.config
    changes: dict[str, int] = {}
    for tie, units in removed:
        left, before, kind = int(units.sum()) * tie.of_unit, tie.count * tie.of_unit, type(config).__name__
        names: tuple[str, ...] = FEATURES_OF_CONFIG
        what = "holds one number of features for all"
        if tie.attention is not None:
            names, what = HEADS_OF_CONFIG, "holds one number of heads for all"
        elif tie.parts:
            names = ("hidden_size",) if kind in HIDDEN_IS_SHAPE else ()
            if names and not getattr(config, "head_dim", None):
                changes.setdefault("head_dim", before // config.num_attention_heads)
            what = "may take more than shapes from the hidden size"
        config_key = next((name for name in names if getattr(config, name, None) == before), None)
        if config_key is None or changes.setdefault(config_key, left) != left:
            return f"{kind} {what}"
        if tie.attention is not None:
            changes["head_dim"] = tie.head_dim
            if hasattr(config, "num_key_value_heads"):
                changes["num_key_value_heads"] = left // tie.of_unit
    described = copy.deepcopy(config)
    for name, value in changes.items():
        setattr(described, name, value)
    why = _unlike(net, described)
    if why is not None:
        what = "the width of a head follows from the number of heads" if "head_dim" in changes else "blocks differ"
        return why if "allow" in why else f"{why}: {what}"
    net.config = described  # type: ignore[assignment]  # another network may share the old one
    return None


def unlike_config(net: nn.Module) -> str | None:
    """Why the config of a network of transformers that lost units does not describe it; None if it does, or is not of them."""
    if not is_of_transformers(net) or not any(removal.units for removal in structure_of(net)):
        return None
    return _unlike(net, net.config)


def _unlike(net: nn.Module, config: Any) -> str | None:
    try:
        with torch.device("meta"):
            built = type(net)(config)
    except Exception as error:  # from user networks, or configs that validate their numbers
        return f"{type(config).__name__} does not allow it: {first_line(error)}"
    own = {name: tensor.shape for name, tensor in net.state_dict().items()}
    if own != {name: tensor.shape for name, tensor in built.state_dict().items()}:
        return f"{type(config).__name__} cannot describe it"
    return None
