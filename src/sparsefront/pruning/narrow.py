"""`sf.narrow`: turn a network with pruned heads, hidden features or channels into a narrower dense one.

Its outputs equal those of the masked network up to rounding, because pruned units are multiplied by zeros, biases included.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn

from sparsefront.errors import InvalidSetting
from sparsefront.masks.weight_view import as_matrix
from sparsefront.networks import layer_weight, unwrap
from sparsefront.patterns.hidden import find_hidden_ties
from sparsefront.patterns.ties import Tie, features_of, find_ties
from sparsefront.patterns.width import masks_of_units, units_left
from sparsefront.pruning.masks import require_masks_of
from sparsefront.pruning.structure import Removal, describe_units, forget_zeros, record_removal, remove_units
from sparsefront.pruning.unit_hooks import hooks_of_units, unhook_units

log = logging.getLogger(__name__)


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

    Linear and Conv2d layers, norms, embeddings and head counts become smaller. If a transformers config can
    describe the result, the network's config is updated, and `net.save_pretrained(folder)` writes what `from_pretrained`
    loads. Layers whose masks share no whole units are not changed.

    Args:
        net: masked: pruned weights are zero.
        masks: layer -> bool, [N, K] or shaped like the weight; from pattern channel with axis=width, hidden or all.
    Returns:
        which layers became narrower: `print(narrowed)`. The network remembers what it lost: `sf.save` of its next masks stores
            that too, and `sf.load` opens both in the original architecture.
    Raises:
        InvalidSetting: masks do not belong to the network, or leave hidden features in it that others pruned.
    """
    net = unwrap(net)
    require_masks_of(net, masks)
    layers, tie_units = _narrow_all(net, masks)
    if not tie_units:
        return Narrowed(layers)
    forget_zeros(net)
    left = {tie.reader: units.nonzero().flatten().tolist() for tie, units in tie_units}
    record_removal(net, Removal(units=left, layers=list(masks)))
    return Narrowed(layers, describe_units(net, tie_units))


def narrow_layers(net: nn.Module, masks: Mapping[str, Tensor]) -> dict[str, str]:
    """Like `narrow`, for validated masks and without updating the config.

    Returns:
        layer that became narrower -> why it runs no sparse kernel.
    """
    return {name: f"a narrower dense layer, {shapes}" for name, shapes in _narrow_all(net, masks)[0].items()}


def save_narrower(folder: Path, net: nn.Module, masks: Mapping[str, Tensor]) -> None:
    """`narrow`, then `save_pretrained` into the folder if transformers can load the result; logs which is the case."""
    why = narrow(net, masks).not_in_config
    if why is not None:
        log.info("export: sf.load makes the narrower network; transformers cannot open it: %s", why)
        return
    net.save_pretrained(folder)  # type: ignore[operator]  # it is of transformers
    log.info("export: transformers opens the narrower network, in folder %s", folder.name)


def _narrow_all(net: nn.Module, masks: Mapping[str, Tensor]) -> tuple[dict[str, str], list[tuple[Tie, Tensor]]]:
    """`Narrowed.layers`, and the ties that lost units with those that remain, bool [units]."""
    matrices = {name: as_matrix(mask) for name, mask in masks.items()}
    ties = find_ties(net, masks)
    tie_units = _with_fewer(ties, matrices)
    if not _explain(tie_units, matrices):
        tie_units += _with_fewer(find_hidden_ties(net, masks, ties), matrices)
    if hooks_of_units(net) and not any(tie.parts or tie.norms for tie, _ in tie_units):
        allowed = (
            "leave hidden features in the network that an earlier sf.prune zeroed: narrow it with those masks first"
        )
        raise InvalidSetting("masks", "given", allowed)
    before = {layer: list(layer_weight(net.get_submodule(layer)).shape) for tie, _ in tie_units for layer in tie.layers}
    unhook_units(net)
    for tie, units in tie_units:
        remove_units(net, tie, units)
    shapes = {layer: f"{list(layer_weight(net.get_submodule(layer)).shape)} of {old}" for layer, old in before.items()}
    return shapes, tie_units


def _explain(tie_units: Sequence[tuple[Tie, Tensor]], masks: Mapping[str, Tensor]) -> bool:
    """Whether the masks prune nothing but these ties' units."""
    if not tie_units:
        return all(map(torch.all, masks.values()))
    shapes = {name: (mask.shape[0], mask.shape[1]) for name, mask in masks.items()}
    explained = masks_of_units(tie_units, shapes)
    return all(mask.equal(explained[name]) for name, mask in masks.items())


def _with_fewer(ties: Iterable[Tie], masks: Mapping[str, Tensor]) -> list[tuple[Tie, Tensor]]:
    return [(tie, units) for tie in ties if (units := _units(tie, masks)) is not None]


def _units(tie: Tie, masks: Mapping[str, Tensor]) -> Tensor | None:
    """Bool [units]: those that any layer uses; None if all are used, or the layers' masks do not share whole units."""
    units = units_left(tie, masks)
    if bool(units.all()) or not bool(units.any()):
        return None
    made = [masks[layer].any(dim=1).equal(features_of(units, sizes)) for layer, sizes in tie.outputs.items()]
    read = [
        bool((masks[layer].any(dim=0).unflatten(0, (-1, tie.count * sum(sizes))) == features_of(units, sizes)).all())
        for layer, sizes in tie.inputs.items()
    ]
    return units if all(made + read) else None
