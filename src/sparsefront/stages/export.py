"""Stage export: write the masked weights as plain and compressed checkpoints with a manifest, and check those of a record."""

import json
import logging
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from sparsefront.artifacts.content_digest import digest, find_damage
from sparsefront.artifacts.store import RECORD, Artifact, ArtifactStore, read_record
from sparsefront.config.experiment import Experiment
from sparsefront.errors import Edited, InvalidSetting
from sparsefront.export.checkpoint import MANIFEST, Export, damage_as_value_error, read_export
from sparsefront.export.packed_layers import pack_layers
from sparsefront.export.save import save
from sparsefront.networks import load_state, tensors_digest
from sparsefront.options import shorten
from sparsefront.pruning.mask_spec import PATTERNS, PERMUTATIONS, SPARSITIES, MaskSpec
from sparsefront.pruning.narrow import save_narrower
from sparsefront.results.field_types import differences
from sparsefront.results.record import Result
from sparsefront.results.run_folder import find_checkpoint
from sparsefront.stages.network import build_net, load_net
from sparsefront.stages.recover import load_masks_of
from sparsefront.training.resume import WEIGHTS

log = logging.getLogger(__name__)


def run(
    experiment: Experiment, store: ArtifactStore, cache_key: dict[str, Any], pruned: Artifact, recovered: Artifact
) -> Artifact:
    """See `export.save.save`; for tied layers also narrower/, if transformers can describe the narrower network."""
    while (exported := store.get("export", cache_key)) is None:
        with store.making("export", cache_key) as new:
            log.info("export: compressed checkpoint and manifest")
            weights = recovered.path / WEIGHTS
            masks = load_masks_of(experiment, pruned.path, recovered.path)
            net = load_net(experiment, weights, shrink=masks.spec.shrink)
            save(new.folder, net, masks, model=experiment.model, weights=weights)
            if experiment.pattern.tied and not experiment.leaves_dense:
                save_narrower(narrower := new.folder / "narrower", net, masks)
                if narrower.is_dir():  # with its tokenizer, so that it can be the next run's model.path
                    experiment.model.save_pretrained_files(net, narrower)
    return exported


CHECKPOINT = re.compile(r"export/([0-9a-f]{16})")


def find(result: Result, row: Path, checkpoint: Path | None, cache_dir: Path) -> Export | None:
    """The exported network of a stored result, whose files are those that it was measured with; None if it pruned nothing.

    Args:
        row: file of the result, next to which there may be a link to the export.
        checkpoint: the folder, if given explicitly.
        cache_dir: of the stages on this machine.
    Raises:
        InvalidSetting: it is not available.
        Edited: the record names none, it cannot be read, or digests of weights, masks or other files differ.
    """
    identity = result.identity
    if result.choice.pattern == "dense" and identity.checkpoint is None:
        return None
    for field in ("checkpoint", "masks_sha256", "weights_sha256"):
        if getattr(identity, field) is None:
            raise Edited("record", f"was edited: {field} is null, and pattern={result.choice.pattern} prunes a network")
    if not CHECKPOINT.fullmatch(str(identity.checkpoint)):
        raise Edited("record", f"was edited: checkpoint is {shorten(identity.checkpoint)}, which no run is stored as")
    places = [checkpoint] if checkpoint else [find_checkpoint(row.parent), cache_dir / str(identity.checkpoint)]
    # a relative link is dangling after the run's folder was moved
    folder = next((place for place in places if place is not None and place.is_dir()), None)
    if folder is None:
        allowed = (
            "is not there any more: name the exported network with --checkpoint, or the cache that has it with --cache-dir "
            "(no path of a record is followed), or train it again with --retrain"
        )
        raise InvalidSetting("checkpoint", checkpoint or identity.checkpoint, allowed)
    try:
        with damage_as_value_error():
            export = read_export(folder)
            digests = {"masks": tensors_digest(export.masks), "weights": tensors_digest(export.state_dict())}
            record = read_record(folder)
            damage, name = find_damage(folder, record.get("files", {})), digest(record["determined_by"])
    except InvalidSetting:
        raise
    except ValueError as error:
        raise Edited(str(folder), f"cannot be read: {error}") from error
    for part, sha256 in digests.items():
        if sha256 != getattr(identity, f"{part}_sha256"):
            raise Edited(part, f"are not those that were measured: their sha256 is not the {part}_sha256 of the record")
    if damage is not None:
        raise Edited(str(folder), f"is not what was stored: {damage}")
    if identity.checkpoint != f"export/{name}":
        raise Edited(RECORD, f"was edited: it is of export/{name}, where {identity.checkpoint} was measured")
    return export


def check(experiment: Experiment, export: Export, reasons: dict[str, str], trust: Sequence[str]) -> MaskSpec:
    """Pack the weights of an export again, and compare its manifest and the compressed layers that kernels read. This also checks
    that pruned weights are zero and that each mask obeys its pattern.

    Args:
        reasons: prunable layer -> why it stayed dense.
        trust: packages whose patterns it may name.
    Returns:
        its mask spec.
    Raises:
        Edited: they differ, or a file cannot be read.
    """
    net, stated = build_net(experiment), export.manifest
    try:
        with damage_as_value_error():
            spec = MaskSpec.load(export.directory, trust=trust)
            spec.shrink(net)
            load_state(net, export.state_dict())
            _require_layers(experiment, export, spec)
            packed = pack_layers(
                net,
                export.masks,
                pattern=experiment.pattern,
                sparsity=experiment.sparsity,
                permutations=spec.permutations,
                sparsities=spec.sparsities,
                patterns=spec.patterns,
                dense_reasons=reasons,
            )
            layers = {layer: (export.format(layer).tensors(), own.tensors()) for layer, own in packed.formats.items()}
    except Edited:
        raise
    except ValueError as error:
        raise Edited(str(export.directory), f"was edited: {error}") from error
    made = json.loads(json.dumps(packed.manifest.to_json()))
    if stated.pattern_class is None:  # an export of an earlier version
        made |= {"format_version": stated.format_version, "pattern_class": None}
    for path, one, other in differences((), json.loads(json.dumps(stated.to_json())), made):
        difference = f"its {'.'.join(map(shorten, path))} is {shorten(repr(one))}, where {shorten(repr(other))}"
        raise Edited(MANIFEST, f"was edited: {difference} was measured")
    for layer, (one, other) in layers.items():
        if one.keys() != other.keys() or not all(torch.equal(one[name], other[name]) for name in one):
            raise Edited(f"compressed weights of {layer}", "are not its weights: kernels would compute something else")
    return spec


def _require_layers(experiment: Experiment, export: Export, spec: MaskSpec) -> None:
    """Check that sparsities are given for all layers or none, that masks have them, and that no other layer is named."""
    layers = export.manifest.layers
    by_file = {SPARSITIES: spec.sparsities or {}, PERMUTATIONS: spec.permutations, PATTERNS: spec.patterns or {}}
    for file, entries in by_file.items():
        more = sorted(entries.keys() - {*layers, *export.manifest.dense_layers})
        if more:
            raise Edited(file, f"was edited: it names {shorten(more[0])}, which is no layer of {MANIFEST}")
    for layer, mask in export.masks.items() if spec.sparsities is not None else ():
        if layer not in spec.sparsities:
            raise Edited(SPARSITIES, f"was edited: it has no sparsity for {layer}")
        missed = abs(mask.numel() * spec.sparsities[layer] - (mask.numel() - int(mask.sum())))
        if missed > spec.pattern_of(layer, experiment.pattern).rounding_unit((mask.shape[0], mask.shape[1])):
            raise Edited(SPARSITIES, f"was edited: the mask of {layer} has another sparsity")
