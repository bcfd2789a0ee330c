"""Depth pruning: find identical blocks, score them, and remove some."""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sparsefront.errors import InvalidSetting
from sparsefront.models.experts import SplitExperts
from sparsefront.networks import after_forward, before_forward, in_eval_mode, names_left, remove_blocks
from sparsefront.patterns.depth import Depth, Experts
from sparsefront.progress import counted
from sparsefront.pruning.calibration import NetworkCalibration, in_encoder, real_positions
from sparsefront.pruning.layers import weight_of
from sparsefront.pruning.make_masks import PruningSettings
from sparsefront.pruning.mask_spec import MaskSpec
from sparsefront.pruning.masks import Masks
from sparsefront.pruning.structure import Removal, record_removal, structure_of
from sparsefront.tasks.base import Batch, Task


def alike_blocks(net: nn.Module, layers: Collection[str]) -> list[str]:
    """Find two or more blocks: members of a ModuleList or Sequential with the same class and parameter shapes.

    If there are several such lists, the longest determines the class, and all blocks of that class count: the stages of a
    ResNet. In encoder-decoder networks of transformers all lists count.

    Args:
        net: may be on the meta device.
        layers: the prunable layers; a block contains at least one and is not itself a layer.
    Returns:
        names in network order; empty if there are none.
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
    longest = max(several, key=lambda key: len(several[key]))  # ties go to the first, which is the outermost
    candidates: list[str] = []
    for (kind, *_), names in several.items():
        if kind is longest[0] or _has_two_stacks(net):
            candidates += [name for name in names if not any(name.startswith(f"{block}.") for block in candidates)]
    order = {name: place for place, (name, _) in enumerate(net.named_modules())}
    return sorted(candidates, key=order.__getitem__)


def _has_two_stacks(net: nn.Module) -> bool:
    return bool(getattr(getattr(net, "config", None), "is_encoder_decoder", False))


@dataclass(frozen=True)
class Stack:
    """Blocks of which a share is removed: all of the network, or those of its encoder or decoder.

    Args:
        blocks: that may be removed.
        count: how many are.
        first: a block before them that counts and stays: T5's first ones hold the biases of relative positions.
    """

    blocks: list[str]
    count: int
    first: str | None = None

    def select(self, pattern: Depth, influence: Mapping[str, float] | None = None) -> list[str]:
        """The blocks to remove; evenly without `influence`, block -> its influence."""
        if influence is None:
            return Depth().select([self.first, *self.blocks] if self.first else self.blocks, self.count)
        return pattern.select(self.blocks, self.count, [influence[block] for block in self.blocks])


def removable_blocks(
    net: nn.Module, layers: Collection[str], ignored: Iterable[str], pattern: Depth, sparsity: float
) -> list[Stack]:
    """The removable blocks, and how many of them a sparsity removes.

    Args:
        layers: the prunable layers.
        ignored: layers that the user keeps, and therefore their blocks.
    Raises:
        InvalidSetting: no identical blocks, or a sparsity that rounds to none or all blocks.
    """
    if isinstance(pattern, Experts):
        return _stacks_of_experts(net, ignored, pattern, sparsity)
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
    if not _has_two_stacks(net):
        return [Stack(blocks, pattern.count(len(blocks), sparsity))]
    stacks: list[Stack] = []
    for parent in dict.fromkeys(block.rpartition(".")[0] for block in alike):
        own = [block for block in blocks if block.rpartition(".")[0] == parent]
        first = f"{parent}.{next(iter(net.get_submodule(parent)._modules))}"
        before = None if first in alike else first
        if own:
            stacks.append(Stack(own, pattern.count(len(own) + (before is not None), sparsity), before))
    return stacks


def _stacks_of_experts(net: nn.Module, ignored: Iterable[str], pattern: Experts, sparsity: float) -> list[Stack]:
    ignored, stacks = list(ignored), []
    for name, module in net.named_modules():
        if not isinstance(module, SplitExperts):
            continue
        experts = [f"{name}.{number}" for number in range(module.num_experts)]
        exempt = next((layer for layer in ignored if layer.startswith(f"{name}.")), None)
        if exempt:
            allowed = f"keeps a layer of an expert ({exempt}), and pattern=experts removes as many in every block"
            raise InvalidSetting("ignore", "given", allowed)
        stacks.append(Stack(experts, pattern.count(len(experts), sparsity)))
    if not stacks:
        allowed = "takes whole experts, and this network has no mixture of them with weights [experts, outputs, inputs]"
        raise InvalidSetting("pattern", pattern.name, allowed)
    return stacks


@torch.no_grad()
def measure_routing(
    task: Task, blocks: list[str], layers: list[str], open_loader: Callable[[], Iterable[Batch]], batches: int
) -> list[float]:
    """The share of its block's routing weights that each expert gets from calibration tokens; arguments as `block_influence`."""
    calibration = NetworkCalibration(task, layers, open_loader)
    owners = {block.rpartition(".")[0]: None for block in blocks}
    modules = {name: task.net.get_submodule(name) for name in owners}
    device = weight_of(task.net, layers[0]).device
    mass = {name: torch.zeros(len(list(module.children())), device=device).double() for name, module in modules.items()}
    real: list[Tensor | None] = [None]

    def add(name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        index, weights = (*args, *kwargs.values())[1:3]
        if real[0] is not None and real[0].numel() == len(index):
            index, weights = index[real[0].flatten()], weights[real[0].flatten()]
        mass[name].index_add_(0, index.flatten(), weights.flatten().double())

    with in_eval_mode(task.net), before_forward(modules, add):
        for batch in calibration.batches(batches):
            real[0] = real_positions(batch)
            task.call(task.net, task.net_inputs(batch))
    totals = {name: total / total.sum() for name, total in calibration.total(mass).items()}
    return [float(totals[owner][int(number)]) for owner, _, number in (block.rpartition(".") for block in blocks)]


@torch.no_grad()
def block_influence(
    task: Task, blocks: list[str], layers: list[str], open_loader: Callable[[], Iterable[Batch]], batches: int
) -> list[float]:
    """1 - the mean cosine similarity of each block's input and output; see `Depth`.

    Args:
        task: the network, on the device of the computation.
        layers: any layers of the network.
        open_loader: see `NetworkCalibration`.
        batches: number of batches of all ranks together.
    Raises:
        InvalidSetting: a block's output has another shape than its input.
    """
    calibration = NetworkCalibration(task, layers, open_loader)
    device = weight_of(task.net, layers[0]).device
    sums = {
        block: torch.zeros(2, dtype=torch.float64, device=device) for block in blocks
    }  # sums of similarities, numbers of positions
    real: list[Tensor | None] = [None]

    def compare(block: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], output: Any) -> None:
        inputs = next(value for value in (*args, *kwargs.values()) if isinstance(value, Tensor))
        gives = output[0] if isinstance(output, tuple) else output
        if not isinstance(gives, Tensor) or gives.shape != inputs.shape:
            shape = list(gives.shape) if isinstance(gives, Tensor) else type(gives).__name__
            allowed = (
                f"takes whole blocks, and {block} makes {shape} of {list(inputs.shape)}: what follows would not fit"
            )
            raise InvalidSetting("pattern", "depth", allowed)
        of_text = gives.dim() == 3
        if not of_text:
            inputs, gives = inputs.flatten(1), gives.flatten(1)
        similar = F.cosine_similarity(inputs.float(), gives.float(), dim=-1).double()
        if of_text and of_first_text(modules[block]) and real[0] is not None and real[0].shape == similar.shape:
            similar = similar[real[0]]
        sums[block] += torch.stack((similar.sum(), torch.tensor(float(similar.numel()), device=device).double()))

    modules, of_first_text = {block: task.net.get_submodule(block) for block in blocks}, in_encoder(task.net)
    with in_eval_mode(task.net), after_forward(modules, compare):
        for batch in calibration.batches(batches):
            real[0] = real_positions(batch)
            task.call(task.net, task.net_inputs(batch))
    totals = calibration.total(sums)
    return [1 - float(totals[block][0] / totals[block][1]) for block in blocks]


def prune_blocks(
    task: Task,
    pruning: PruningSettings,
    layers: list[str],
    stay: list[str],
    ignored: Mapping[str, str],
    open_loader: Callable[[], Iterable[Batch]] | None,
    tell: Callable[[str], None],
) -> Masks:
    """Select blocks of the task's network and remove them, in place.

    Args:
        pruning: with pattern depth.
        layers: the prunable layers.
        stay: layers that the user keeps, with their blocks.
        ignored: all layers that stay dense -> why, for the masks.
        open_loader: opens a loader of calibration batches; None if there are none.
    Returns:
        masks of the layers in all identical blocks, by their original names: all zeros in removed blocks, all ones in the
        others.
    Raises:
        InvalidSetting: see `removable_blocks` and `block_influence`; or calibration is missing.
    """
    net, pattern = task.net, pruning.pattern
    assert isinstance(pattern, Depth)
    stacks = removable_blocks(net, layers, stay, pattern, pruning.sparsity)
    blocks, count = [block for stack in stacks for block in stack.blocks], sum(stack.count for stack in stacks)
    influence, influence_text = None, ""
    if pattern.choose == "importance":
        if open_loader is None:
            allowed = f"pattern.choose=importance compares what is given to {pattern.unit}s: give batches, such as a DataLoader"
            raise InvalidSetting("calibration", None, allowed)
        of_experts = isinstance(pattern, Experts)
        measure = measure_routing if of_experts else block_influence
        influence = dict(zip(blocks, measure(task, blocks, layers, open_loader, pattern.batches), strict=True))
        influence_text = "; routed mass " if of_experts else "; influence "
        influence_text += ", ".join(f"{one:.3g}" for one in influence.values())
    removed = [block for stack in stacks for block in stack.select(pattern, influence)]
    inside = {name: next((block for block in blocks if name.startswith(f"{block}.")), None) for name in layers}
    masks = {
        name: torch.full_like(weight_of(net, name), block not in removed, dtype=torch.bool)
        for name, block in inside.items()
        if block is not None
    }
    weights = sum(weight_of(net, name).numel() for name in layers)
    pruned = sum(mask.numel() for mask in masks.values() if not mask.any())
    tell(
        f"prune: {pattern.name} takes {count} of {len(blocks)} {pattern.unit}s out ({', '.join(removed) or 'none'}), "
        f"{pruned / weights:.1%} of the weights in {counted(len(layers), 'layer')} where {pruning.sparsity:.1%} was asked "
        f"for{influence_text}"
    )
    spec = MaskSpec(blocks=names_left(net, blocks, removed), structure=structure_of(net))
    remove_blocks(net, spec.blocks or {})
    record_removal(net, Removal(blocks=spec.blocks or {}))
    outside = {name: "in no block that may go" for name, block in inside.items() if block is None}
    return Masks(masks, pruning=pruning, spec=spec, ignored={**ignored, **outside})
