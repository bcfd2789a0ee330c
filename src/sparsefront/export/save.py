"""Save a pruned network in a folder and load it: `sf.save`, `sf.load`, `sf.from_pretrained`."""

import copy
import json
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sparsefront.artifacts.bounded_files import read_json_bounded
from sparsefront.artifacts.content_digest import are_checksums, checksums, find_damage
from sparsefront.artifacts.durable import whole_folder
from sparsefront.errors import InvalidSetting, first_line
from sparsefront.export.checkpoint import (
    COMPRESSED,
    MANIFEST,
    MASKS,
    MODEL,
    ORIGINAL_CONFIG,
    Export,
    damage_as_value_error,
    read_export,
    write_export,
)
from sparsefront.export.packed_layers import Manifest
from sparsefront.masks.weight_view import fits, like_weight
from sparsefront.models.base import CONFIG, Model
from sparsefront.models.checkpoint import misfit_of
from sparsefront.models.linears import as_linears
from sparsefront.networks import has_blocks, load_state, remove_blocks, unwrap
from sparsefront.options import option_classes, require_package
from sparsefront.patterns.base import CLASS, Pattern, from_record
from sparsefront.patterns.hidden import ties_of
from sparsefront.pruning.layers import dense_weights, weight_of
from sparsefront.pruning.make_masks import PruningSettings
from sparsefront.pruning.mask_spec import BLOCKS, PATTERNS, PERMUTATIONS, SPARSITIES, STRUCTURE, MaskSpec, load_masks
from sparsefront.pruning.masks import Masks, masks_left, require_masks_of
from sparsefront.pruning.narrow import narrow
from sparsefront.pruning.structure import Removal, apply_structure, record_removal, record_zeros, structure_of
from sparsefront.pruning.unit_hooks import hook_units
from sparsefront.tasks.plain_task import device_of, require_finite_weights, require_network


def save(
    folder: Path | str,
    net: nn.Module,
    masks: Mapping[str, Tensor],
    *,
    model: Model | None = None,
    weights: Path | None = None,
    tokenizer: Any = None,
) -> Export:
    """Write weights, masks and compressed layers: safetensors and JSON only.

    model.safetensors is a plain state dict that any tool loads; see `export.checkpoint` for the other files. For a network of
    transformers config.json is written too, so that `from_pretrained(folder)` opens it. If saving fails, or is killed before
    files are moved into the folder, it is unchanged; a kill in that moment leaves a mixture, which `load` refuses.

    Args:
        folder: created if missing; an export in it is replaced, and other files in it stay.
        net: masked, with pruned weights zero, and not swapped.
        masks: from `prune` or `recover`, or any dict of layer name -> bool mask.
        model: adds the files of its own library.
        weights: a safetensors file with the network's state dict, hard-linked if the file system can.
        tokenizer: of transformers; its files are written too.
    Raises:
        InvalidSetting: no masks, or masks that do not fit the network; or a folder that cannot be made.
        ValueError: a pruned weight is not zero, or a mask breaks its pattern; names the layer.
    """
    net, directory = unwrap(net), folder_path("folder", folder)
    require_network(net)
    require_finite_weights(net)
    require_masks_of(net, masks_left(net, masks))
    if model is not None and not isinstance(model, Model):
        raise InvalidSetting("model", type(model).__name__, "is a Model of sparsefront, or None: the network is net")
    if weights is not None:
        weights = folder_path("weights", weights)
        if not weights.is_file():
            raise InvalidSetting("weights", weights, "is no file: name one of safetensors, or None")
    if tokenizer is not None and not hasattr(tokenizer, "save_pretrained"):
        raise InvalidSetting("tokenizer", type(tokenizer).__name__, "is no tokenizer of transformers")
    known = Masks.of(masks)
    spec = known.spec if isinstance(masks, Masks) else MaskSpec(structure=structure_of(net))
    started = False
    try:
        with whole_folder(directory, replaces=_list_saved(directory), first=SAVED) as new:
            started = True
            write_export(
                new,
                net,
                masks,
                pattern=None if known.pruning is None else known.pruning.pattern,
                sparsity=known.sparsity if known.pruning is None else known.pruning.sparsity,
                permutations=known.spec.permutations,
                sparsities=known.spec.sparsities,
                patterns=known.spec.patterns,
                dense_reasons=known.ignored,
                model=model,
                weights=weights,
            )
            spec.save(new)
            if tokenizer is not None:
                tokenizer.save_pretrained(new)
            (new / SAVED).write_text(json.dumps(checksums(new), indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        if started:
            raise
        raise InvalidSetting("folder", folder, f"cannot be written ({error.strerror}); name another folder") from error
    return read_export(directory)


def folder_path(argument: str, given: object) -> Path:
    """Convert an argument to a Path.

    Raises:
        InvalidSetting: it is no path.
    """
    if not isinstance(given, str | os.PathLike) or not str(given) or "\0" in str(given):
        raise InvalidSetting(
            argument, repr(given) if isinstance(given, str | None) else type(given).__name__, "is a path"
        )
    return Path(given)


# Checksums of the files of one save, which detect a mixture of two.

SAVED = "saved.json"  # name -> size and sha256 of each file of the save
READ = (MODEL, MASKS, COMPRESSED, MANIFEST, SPARSITIES, PATTERNS, BLOCKS, STRUCTURE, PERMUTATIONS)


def _list_saved(directory: Path) -> set[str]:
    """Files of an earlier save: those that every save may write, and those in its `saved.json`."""
    try:
        record = read_json_bounded(directory / SAVED)
    except ValueError:
        record = {}
    listed = record if are_checksums(record) else {}
    return {SAVED, *READ, *(name for name in listed if Path(name).name == name and not (directory / name).is_dir())}


def _require_one_save(directory: Path) -> None:
    """Raise ValueError unless the files that `load` reads belong to one save; earlier versions have no checksums."""
    if not (directory / SAVED).is_file():
        return
    saved = read_json_bounded(directory / SAVED)
    if not are_checksums(saved):
        raise ValueError(f"{SAVED} holds no checksums")
    damage = find_damage(directory, {name: saved[name] for name in READ if name in saved})
    more = next((name for name in READ if name not in saved and (directory / name).exists()), None)
    if damage is None and more is not None:
        damage = f"{more} was not saved with the others"
    if damage is not None:
        raise ValueError(f"its files are not of one save ({damage}): save the network again")


def load(folder: Path | str, net: nn.Module, *, trust: Sequence[str] = (), narrower: bool = True) -> Masks:
    """Load the output of `save`, or a run's export, into `net`, in place. No code from the folder is executed.

    Args:
        net: the saved architecture; its device and dtype stay. If blocks or units were removed from it, with them (they are
            removed here) or without, as `from_pretrained` opens it.
        narrower: if whole heads and features were pruned (pattern channel with tied channels), remove them (`sf.narrow`), which
            leaves a dense network. False: layers keep their shapes, with zeros.
        trust: third-party packages whose patterns the export may name, such as ["mylab.patterns"]: importing them runs their
            code. Patterns of sparsefront need none.
    Returns:
        the masks, shaped like the weights and on their device, with their pattern; those of narrower layers keep every weight.
    Raises:
        InvalidSetting: no export in the folder, a damaged one, a mixture of two, another architecture (names the first few
            differences), or a pattern of a package that is not in `trust`. The network is then unchanged.
    """
    net = unwrap(net)
    require_network(net)
    require_packages(trust)
    directory = folder_path("folder", folder)
    try:
        with damage_as_value_error():
            export = read_export(directory)
            weights, pattern = export.state_dict(), _pattern(export.manifest, trust)
            spec = MaskSpec.load(export.directory, trust=trust)
            as_linears(net, {name.rpartition(".")[0] for name in weights})
            larger = bool(spec.structure and misfit_of(weights, _drop_blocks(net, spec)))
            fitting = copy.deepcopy(net) if larger else net  # so that the network is unchanged if it does not fit
            if larger:
                apply_structure(fitting, spec.structure)
            masks = _masks_for(fitting, export, weights, spec)
            _require_one_save(export.directory)
            del fitting
    except InvalidSetting as error:
        prefix = "" if error.key == "path" else f"{error.key}={error.value}: "
        raise InvalidSetting("folder", folder, f"{prefix}{error.allowed}") from error
    except ValueError as error:
        raise InvalidSetting("folder", folder, f"is a damaged export: {error}") from error
    if larger:
        apply_structure(net, spec.structure)
    if spec.blocks is not None and has_blocks(net, spec.blocks):
        remove_blocks(net, spec.blocks)
        record_removal(net, Removal(blocks=spec.blocks))
    load_state(net, weights)
    ignored = export.manifest.dense_layers
    if pattern is not None and pattern.tied:
        record_zeros(net, masks)
        hook_units(net, ties_of(net, masks, pattern), masks)
    if narrower and pattern is not None and pattern.tied:
        taken = narrow(net, masks).layers
        masks |= {name: torch.ones_like(weight_of(net, name), dtype=torch.bool) for name in taken}
        pattern = None if taken else pattern  # the remaining masks no longer have the pattern
        spec = replace(spec, structure=structure_of(net))
    return Masks(
        masks,
        pruning=None if pattern is None else PruningSettings(pattern, export.manifest.sparsity),
        spec=spec,
        ignored=ignored,
        dense={weight.name: weight.why for weight in dense_weights(net, {*masks, *ignored})},
    )


def from_pretrained(folder: Path | str, *, trust: Sequence[str] = ()) -> tuple[nn.Module, Masks]:
    """A saved network of transformers, and its masks as from `load`: layers of any widths too, which transformers cannot open.

    Args:
        folder: of `save`; nothing in it is executed, and its class is one of transformers.
        trust: as in `load`.
    Returns:
        the network, in eval mode on the CPU, and the masks, for `sf.swap`.
    Raises:
        InvalidSetting: no export, a damaged one, or one of another library.
    """
    directory = folder_path("folder", folder)
    file = next((directory / name for name in (CONFIG, ORIGINAL_CONFIG) if (directory / name).is_file()), None)
    if file is None:
        allowed = "has no config of transformers: build the network as it was, and give it to sf.load"
        raise InvalidSetting("folder", folder, allowed)
    require_package("transformers", key="folder", value=folder, instead="sf.load")
    import transformers

    try:
        settings = read_json_bounded(file)
        kind = getattr(transformers, settings["architectures"][0])
        config = kind.config_class.from_dict(settings)
        net = kind(config).to(config.dtype or torch.float32).eval()
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise InvalidSetting("folder", folder, f"{file.name} describes no network here: {first_line(error)}") from error
    return net, load(directory, net, trust=trust)


def require_packages(trust: object) -> None:
    """Raise InvalidSetting if `trust` is no list of packages."""
    names = list(trust) if isinstance(trust, Collection) and not isinstance(trust, str) else [None]
    if not all(isinstance(one, str) and all(map(str.isidentifier, one.split("."))) for one in names):
        raise InvalidSetting("trust", trust, 'is a list of packages, such as ["mylab.patterns"]')


def _masks_for(net: nn.Module, export: Export, weights: Mapping[str, Tensor], spec: MaskSpec) -> dict[str, Tensor]:
    """The masks, shaped like the network's weights and on their device.

    Raises:
        InvalidSetting: weights or masks of another network (key `path`).
    """
    complaint = misfit_of(weights, _drop_blocks(net, spec))
    if complaint:
        raise InvalidSetting("path", export.directory, complaint)
    masks = {}
    if spec.blocks is not None:
        stored, device = load_masks(export.directory / MASKS), device_of(net)
        return {name: stored[name].to(device) for name in export.masks}
    for name, mask in export.masks.items():
        if f"{name}.weight" not in weights:
            raise InvalidSetting(
                "path", export.directory, f"is a damaged export: {name}, which has a mask, has no weight"
            )
        weight = weight_of(net, name)
        if not fits(mask, weight):
            allowed = f"is a damaged export: the mask of {name} is {list(mask.shape)}, its weight {list(weight.shape)}"
            raise InvalidSetting("path", export.directory, allowed)
        masks[name] = like_weight(mask, weight).to(weight.device)
    return masks


def _drop_blocks(net: nn.Module, spec: MaskSpec) -> dict[str, Tensor]:
    """The state dict that a network has without the blocks that the pattern removed."""
    state = net.state_dict()
    if spec.blocks is None or spec.structure or not has_blocks(net, spec.blocks):
        return state
    if any(hasattr(net.get_submodule(block.rpartition(".")[0]), "forget_experts") for block in spec.blocks):
        remove_blocks(smaller := copy.deepcopy(net), spec.blocks)  # routers change, too
        return smaller.state_dict()
    return {left: tensor for name, tensor in state.items() if (left := spec.name_left(name)) is not None}


def _pattern(manifest: Manifest, trust: Sequence[str]) -> Pattern | None:
    """The export's pattern, of a user-defined class too; None if unknown."""
    if manifest.pattern is None:
        return None
    class_name = manifest.pattern_class
    if class_name is None:  # an earlier version, which had only our own patterns
        kind = option_classes("sparsefront.patterns").get(manifest.pattern)
        if kind is None:
            raise InvalidSetting("pattern", manifest.pattern, "is no pattern of this version")
        class_name = f"{kind.__module__}.{kind.__qualname__}"
    return from_record({CLASS: class_name, **manifest.pattern_parameters}, trust=trust)
