"""Prune by whole blocks: which blocks of a network are alike, how much each changes, and which of them go."""

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sparsefront.errors import InvalidSetting
from sparsefront.networks import after_forward, in_eval_mode, names_left, remove_blocks
from sparsefront.patterns.depth import Depth
from sparsefront.progress import counted
from sparsefront.pruning.calibration import NetworkCalibration, real_positions
from sparsefront.pruning.layers import weight_of
from sparsefront.pruning.make_masks import PruningSettings
from sparsefront.pruning.mask_spec import MaskSpec
from sparsefront.pruning.masks import Masks
from sparsefront.tasks.base import Batch, Task

# Which blocks of a network are alike: each can then go, and what is left still fits together.


def alike_blocks(net: nn.Module, layers: Collection[str]) -> list[str]:
    """The members of a ModuleList or Sequential that are of one class and have parameters of the same shapes, two or more.

    Of several such lists the longest decides the class; further ones of that class belong to it: the stages of a ResNet.

    Args:
        net: also on the meta device.
        layers: those that may be pruned; a block holds at least one, and is no bare layer.
    Returns:
        names in the network's order; empty where no two are alike.
    """
    lists: dict[tuple[Any, ...], list[str]] = {}
    for name, module in net.named_modules():
        if not isinstance(module, nn.ModuleList | nn.Sequential):
            continue
        for key, block in module._modules.items():
            block_name = f"{name}.{key}".removeprefix(".")
            if block is not None and any(block.children()) and any(one.startswith(f"{block_name}.") for one in layers):
                shapes = tuple((own, tuple(parameter.shape)) for own, parameter in block.named_parameters())
                lists.setdefault((type(block), name, shapes), []).append(block_name)
    several = {key: names for key, names in lists.items() if len(names) > 1}
    if not several:
        return []
    longest = max(several, key=lambda key: len(several[key]))  # of equally long ones the first, which is the outermost
    found: list[str] = []
    for (kind, *_), names in several.items():
        if kind is longest[0]:
            found += [name for name in names if not any(name.startswith(f"{block}.") for block in found)]
    order = {name: place for place, (name, _) in enumerate(net.named_modules())}
    return sorted(found, key=order.__getitem__)


def removable_blocks(
    net: nn.Module, layers: Collection[str], ignored: Iterable[str], pattern: Depth, sparsity: float
) -> tuple[list[str], int]:
    """The blocks that may go, and how many of them a sparsity takes.

    Args:
        layers: that may be pruned.
        ignored: layers that somebody wants to stay: so do their blocks.
    Raises:
        InvalidSetting: no two blocks are alike, the network has an encoder and a decoder, or the sparsity rounds to none or all.
    """
    if getattr(getattr(net, "config", None), "is_encoder_decoder", False):
        allowed = (
            "takes whole blocks of one encoder or decoder, and this network has both: choose a pattern within layers"
        )
        raise InvalidSetting("pattern", pattern.name, allowed)
    alike = alike_blocks(net, {*layers, *ignored})
    if not alike:
        allowed = (
            "takes whole blocks, and no two members of a ModuleList or Sequential are alike here (one class, parameters of the "
            "same shapes): choose a pattern within layers"
        )
        raise InvalidSetting("pattern", pattern.name, allowed)
    blocks = [block for block in alike if not any(layer.startswith(f"{block}.") for layer in ignored)]
    if len(blocks) < 2:
        stay = f"leaves {counted(len(blocks), 'block')} that may go of {len(alike)}"
        raise InvalidSetting("ignore", "given", f"{stay}: pattern={pattern.name} takes whole blocks, and needs two")
    return blocks, pattern.count(len(blocks), sparsity)


# How much a block changes what passes through it.


@torch.no_grad()
def block_influence(
    task: Task, blocks: list[str], layers: list[str], open_loader: Callable[[], Iterable[Batch]], batches: int
) -> list[float]:
    """1 - the mean cosine similarity of what each block is given and what it gives; see `Depth`.

    Args:
        task: the network, on the device of the computation.
        layers: any of the network's.
        open_loader: see `NetworkCalibration`.
        batches: how many, all ranks together.
    Raises:
        InvalidSetting: a block that gives another shape than it is given.
    """
    calibration = NetworkCalibration(task, layers, open_loader)
    device = weight_of(task.net, layers[0]).device
    sums = {
        block: torch.zeros(2, dtype=torch.float64, device=device) for block in blocks
    }  # of similarities, of positions
    real: list[Tensor | None] = [None]

    def compare(block: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], output: Any) -> None:
        given = next(value for value in (*args, *kwargs.values()) if isinstance(value, Tensor))
        gives = output[0] if isinstance(output, tuple) else output
        if not isinstance(gives, Tensor) or gives.shape != given.shape:
            shape = list(gives.shape) if isinstance(gives, Tensor) else type(gives).__name__
            allowed = (
                f"takes whole blocks, and {block} makes {shape} of {list(given.shape)}: what follows would not fit"
            )
            raise InvalidSetting("pattern", "depth", allowed)
        of_text = gives.dim() == 3
        if not of_text:
            given, gives = given.flatten(1), gives.flatten(1)
        similar = F.cosine_similarity(given.float(), gives.float(), dim=-1).double()
        if of_text and real[0] is not None and real[0].shape == similar.shape:
            similar = similar[real[0]]
        sums[block] += torch.stack((similar.sum(), torch.tensor(float(similar.numel()), device=device).double()))

    modules = {block: task.net.get_submodule(block) for block in blocks}
    with in_eval_mode(task.net), after_forward(modules, compare):
        for batch in calibration.batches(batches):
            real[0] = real_positions(batch)
            task.call(task.net, task.net_inputs(batch))
    totals = calibration.total(sums)
    return [1 - float(totals[block][0] / totals[block][1]) for block in blocks]


# Pruning by whole blocks.


def prune_blocks(
    task: Task,
    pruning: PruningSettings,
    layers: list[str],
    stay: list[str],
    ignored: Mapping[str, str],
    open_loader: Callable[[], Iterable[Batch]] | None,
    tell: Callable[[str], None],
) -> Masks:
    """Decide which blocks of the task's network go, and take them out, in place.

    Args:
        pruning: with pattern depth.
        layers: that may be pruned.
        stay: layers that somebody wants to stay, with their blocks.
        ignored: all layers that stay dense -> why, for the masks.
        open_loader: of calibration batches; None where there are none.
    Returns:
        masks of the layers in all blocks that are alike, by their names before: nothing of a block that went is kept, all of the
        others.
    Raises:
        InvalidSetting: see `removable_blocks` and `block_influence`; or calibration that is missing.
    """
    net, pattern = task.net, pruning.pattern
    assert isinstance(pattern, Depth)
    blocks, count = removable_blocks(net, layers, stay, pattern, pruning.sparsity)
    influence, told = None, ""
    if pattern.choose == "importance":
        if open_loader is None:
            allowed = (
                "pattern.choose=importance compares what blocks are given and give: give batches, such as a DataLoader"
            )
            raise InvalidSetting("calibration", None, allowed)
        influence = block_influence(task, blocks, layers, open_loader, pattern.batches)
        told = "; influence " + ", ".join(f"{one:.3g}" for one in influence)
    gone = pattern.dropped(blocks, count, influence)
    inside = {name: next((block for block in blocks if name.startswith(f"{block}.")), None) for name in layers}
    masks = {
        name: torch.full_like(weight_of(net, name), block not in gone, dtype=torch.bool)
        for name, block in inside.items()
        if block is not None
    }
    weights = sum(weight_of(net, name).numel() for name in layers)
    pruned = sum(mask.numel() for mask in masks.values() if not mask.any())
    tell(
        f"prune: depth takes {count} of {len(blocks)} blocks out ({', '.join(gone) or 'none'}), {pruned / weights:.1%} of the "
        f"weights in {counted(len(layers), 'layer')} where {pruning.sparsity:.1%} was asked for{told}"
    )
    spec = MaskSpec(blocks=names_left(net, blocks, gone))
    remove_blocks(net, spec.blocks or {})
    outside = {name: "in no block that may go" for name, block in inside.items() if block is None}
    return Masks(masks, pruning=pruning, spec=spec, ignored={**ignored, **outside})
