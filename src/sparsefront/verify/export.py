"""An exported network against the record, and against what the configuration of the result builds."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sparsefront.artifacts.content_digest import digest, find_damage
from sparsefront.artifacts.store import RECORD, read_record
from sparsefront.config.experiment import Experiment
from sparsefront.errors import Edited, InvalidSetting
from sparsefront.export.checkpoint import MANIFEST, Export, damage_named, read_export
from sparsefront.export.packed_layers import FORMAT_VERSION, Manifest, storage_of
from sparsefront.inference.swap_report import KEEPS_ALL
from sparsefront.masks.weight_view import as_matrix
from sparsefront.networks import tensors_digest
from sparsefront.options import shortened
from sparsefront.patterns.base import CLASS, label, to_record
from sparsefront.pruning.mask_spec import PATTERNS, PERMUTATIONS, SPARSITIES, MaskSpec
from sparsefront.results.record import SCHEMA_VERSION, Result
from sparsefront.runs import linked_checkpoint

CHECKPOINT = re.compile(r"export/([0-9a-f]{16})")
NOTHING = "dense"  # the pattern that prunes nothing


def find_export(result: Result, row: Path, checkpoint: Path | None, cache_dir: Path) -> Export | None:
    """The exported network of a result; None for pattern=dense, which exports none.

    Args:
        row: file of the result, in whose folder a link may lead to it.
        checkpoint: the folder, where it was named.
        cache_dir: where the stages of this machine are.
    Raises:
        InvalidSetting: it is not there.
        Edited: it cannot be read, or the record of a pruned network names none.
    """
    identity = result.identity
    if result.choice.pattern == NOTHING and identity.checkpoint is None:
        return None
    for field in ("checkpoint", "masks_sha256", "weights_sha256"):
        if getattr(identity, field) is None:
            raise Edited("record", f"was edited: {field} is null, and pattern={result.choice.pattern} prunes a network")
    if not CHECKPOINT.fullmatch(str(identity.checkpoint)):
        raise Edited("record", f"was edited: checkpoint is {shortened(identity.checkpoint)}, which no run is stored as")
    places = [checkpoint] if checkpoint else [linked_checkpoint(row.parent), cache_dir / str(identity.checkpoint)]
    # a link may be relative, and leads nowhere once the run's folder is moved
    folder = next((place for place in places if place is not None and place.is_dir()), None)
    if folder is None:
        allowed = (
            "is not there any more: name the exported network with --checkpoint, or the cache that has it with --cache-dir "
            "(no path of a record is followed); run.py makes it again"
        )
        raise InvalidSetting("checkpoint", checkpoint or identity.checkpoint, allowed)
    try:
        with damage_named():
            return read_export(folder)
    except InvalidSetting:
        raise
    except ValueError as error:
        raise Edited(str(folder), f"cannot be read: {error}") from error


def check_export(result: Result, export: Export) -> None:
    """Check that an exported network is the one that a result was measured of, in all forms that it is stored in.

    Raises:
        Edited: a file is not what was stored, weights or masks have another digest, the manifest states something else, a pruned
            weight is not zero, or a layer's compressed form is not its weight.
    """
    try:
        with damage_named():
            weights, masks = export.state_dict(), export.masks
            digests = {"masks": tensors_digest(masks), "weights": tensors_digest(weights)}
    except ValueError as error:
        raise Edited(str(export.directory), f"cannot be read: {error}") from error
    for part, stored in (("masks", result.identity.masks_sha256), ("weights", result.identity.weights_sha256)):
        if digests[part] != stored:
            raise Edited(part, f"are not those that were measured: their sha256 is not the {part}_sha256 of the record")
    _check_manifest(result, export)
    for layer in export.manifest.layers:
        _check_layer(export, layer, weights)
    _check_stage(result, export.directory)


def _check_stage(result: Result, folder: Path) -> None:
    """What the cache wrote beside the export: checksums of its files, and what its name is the digest of."""
    try:
        record = read_record(folder)
        damage = find_damage(folder, record.get("files", {}))
        name = digest(record["determined_by"])
    except (OSError, ValueError, TypeError, AttributeError, KeyError) as error:
        raise Edited(RECORD, f"cannot be read: {error}") from error
    if damage is not None:
        raise Edited(str(folder), f"is not what was stored: {damage}")
    if result.identity.checkpoint != f"export/{name}":
        raise Edited(RECORD, f"was edited: it is of export/{name}, where {result.identity.checkpoint} was measured")


def _check_manifest(result: Result, export: Export) -> None:
    """What manifest.json states, by the record and by the masks, whose own digest was checked before."""
    manifest, recorded = export.manifest, result.choice.pattern_parameters
    if result.identity.schema_version == SCHEMA_VERSION:
        _require("format_version", manifest.format_version, FORMAT_VERSION)
    _require("sparsity", manifest.sparsity, result.sparsity.sparsity_target)
    for key, value in manifest.pattern_parameters.items():
        if key in recorded:
            _require(f"pattern_parameters.{key}", _as_recorded(value), recorded[key])
    whole = {name: why for name, why in result.sparsity.dense_layers.items() if why == KEEPS_ALL}
    expected = {name: why for name, why in result.sparsity.dense_layers.items() if name not in whole}
    for layer in {**manifest.dense_layers, **expected}:
        stated = manifest.dense_layers.get(layer)
        if layer not in whole or stated is not None:
            _require(f"dense_layers.{layer}", stated, result.sparsity.dense_layers.get(layer))
    for layer, record in manifest.layers.items():
        mask = export.masks[layer]
        nnz = int(mask.sum())
        for name, value in (("shape", tuple(mask.shape)), ("nnz", nnz), ("density", nnz / mask.numel())):
            _require(f"layers.{layer}.{name}", getattr(record, name), value)


def _check_layer(export: Export, layer: str, weights: dict[str, Tensor]) -> None:
    """A pruned layer's weight, zero where its mask prunes, and the same in the compressed form that kernels read."""
    if f"{layer}.weight" not in weights:
        raise Edited(f"weights of {layer}", "are missing")
    weight, mask = as_matrix(weights[f"{layer}.weight"]), export.masks[layer]
    if weight.shape != mask.shape or bool(weight.masked_fill(mask, 0.0).any()):
        raise Edited(f"weights of {layer}", "are not zero where its mask prunes them")
    try:
        with damage_named():
            stored = export.format(layer)
            same = tuple(stored.shape) == tuple(weight.shape) and torch.equal(
                stored.to_dense().to(weight.dtype), weight
            )
    except ValueError:
        same = False
    if not same:
        raise Edited(f"compressed weights of {layer}", "are not its weights: the kernels would compute something else")


def check_built(experiment: Experiment, export: Export, trust: Sequence[str]) -> MaskSpec:
    """Check what an export states of its pattern by the one that the result's configuration builds: name, class and settings, how
    each layer is stored, and the sparsity, order and pattern of each layer, which its mask must obey.

    Returns:
        how the masks are laid out, as the export has it.
    Raises:
        Edited: it states something else, or a file cannot be read.
    """
    manifest, pattern = export.manifest, experiment.pattern
    built = json.loads(json.dumps(to_record(pattern)))
    if manifest.pattern is not None:
        _require("pattern", manifest.pattern, pattern.name)
    if manifest.pattern_class is not None:
        _require("pattern_class", manifest.pattern_class, built[CLASS])
    _require("pattern_parameters", manifest.pattern_parameters, {key: built[key] for key in built if key != CLASS})
    try:
        with damage_named():
            spec = MaskSpec.load(export.directory, trust=trust)
    except ValueError as error:
        raise Edited(SPARSITIES, f"cannot be read: {error}") from error
    _check_layout_names(spec, manifest)
    for layer, record in manifest.layers.items():
        mask, own = export.masks[layer], None if spec.sparsities is None else spec.sparsities[layer]
        obeyed = spec.pattern_of(layer, pattern)
        sparsity = experiment.sparsity if own is None else own
        if obeyed.mixed and sparsity > 0:
            raise Edited(PATTERNS, f"was edited: it has no pattern of {layer}")
        missed = abs(mask.numel() * sparsity - (mask.numel() - int(mask.sum())))
        if own is not None and missed > obeyed.rounding_unit((mask.shape[0], mask.shape[1])):
            raise Edited(
                SPARSITIES, f"was edited: it states {own:g} for {layer}, whose mask has {1 - record.density:g}"
            )
        family, parameters = storage_of(obeyed, mask, experiment.sparsity, own)
        _require(f"layers.{layer}.family", record.family, family)
        _require(f"layers.{layer}.parameters", record.parameters, json.loads(json.dumps(parameters)))
        named = None if layer not in (spec.patterns or {}) else label(obeyed)
        _require(f"layers.{layer}.pattern", record.pattern, named)
        if sparsity == 0:
            continue
        try:
            obeyed.check(mask, sparsity, spec.permutation(layer))
        except (ValueError, IndexError, RuntimeError) as error:
            raise Edited(
                str(export.directory), f"was edited: the mask of {layer} does not obey {label(obeyed)}: {error}"
            ) from error
    return spec


def _check_layout_names(spec: MaskSpec, manifest: Manifest) -> None:
    """Sparsities are of all layers or of none, orders and patterns of some."""
    known = {*manifest.layers, *manifest.dense_layers}
    named = {SPARSITIES: spec.sparsities or {}, PERMUTATIONS: spec.permutations, PATTERNS: spec.patterns or {}}
    for file, layers in named.items():
        if more := sorted(layers.keys() - known):
            raise Edited(file, f"was edited: it names {shortened(more[0])}, which is no layer of {MANIFEST}")
    if spec.sparsities is not None and (gone := sorted(manifest.layers.keys() - spec.sparsities.keys())):
        raise Edited(SPARSITIES, f"was edited: it has no sparsity for {gone[0]}")


def _as_recorded(value: Any) -> Any:
    """A record holds only the last part of a path, since it names no machine."""
    return Path(value).name if isinstance(value, str) else value


def _require(key: str, stated: Any, expected: Any) -> None:
    if stated != expected:
        said = f"its {shortened(key)} is {shortened(repr(stated))}, where {shortened(repr(expected))} was measured"
        raise Edited(MANIFEST, f"was edited: {said}")
