"""Stage export: write the masked weights as plain and compressed checkpoints with a manifest."""

import json
import logging
from collections.abc import Sequence
from typing import Any

import torch

from sparsefront.artifacts.store import Artifact, ArtifactStore
from sparsefront.config.experiment import Experiment
from sparsefront.errors import Edited
from sparsefront.export.checkpoint import MANIFEST, Export, damage_as_value_error
from sparsefront.export.packed_layers import pack_layers
from sparsefront.export.save import save
from sparsefront.networks import load_state, remove_blocks
from sparsefront.options import shortened
from sparsefront.pruning.mask_spec import PATTERNS, PERMUTATIONS, SPARSITIES, MaskSpec
from sparsefront.pruning.narrow import save_narrower
from sparsefront.results.field_types import differences
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
            net = load_net(experiment, weights, blocks=masks.spec.blocks)
            save(new.folder, net, masks, model=experiment.model, weights=weights)
            if experiment.pattern.tied and not experiment.leaves_dense:
                save_narrower(new.folder / "narrower", net, masks)
    return exported


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
            remove_blocks(net, spec.blocks or {})
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
        told = f"its {'.'.join(map(shortened, path))} is {shortened(repr(one))}, where {shortened(repr(other))}"
        raise Edited(MANIFEST, f"was edited: {told} was measured")
    for layer, (one, other) in layers.items():
        if one.keys() != other.keys() or not all(torch.equal(one[name], other[name]) for name in one):
            raise Edited(f"compressed weights of {layer}", "are not its weights: kernels would compute something else")
    return spec


def _require_layers(experiment: Experiment, export: Export, spec: MaskSpec) -> None:
    """Check that sparsities are given for all layers or none, that masks have them, and that no other layer is named."""
    layers = export.manifest.layers
    named = {SPARSITIES: spec.sparsities or {}, PERMUTATIONS: spec.permutations, PATTERNS: spec.patterns or {}}
    for file, found in named.items():
        if more := sorted(found.keys() - {*layers, *export.manifest.dense_layers}):
            raise Edited(file, f"was edited: it names {shortened(more[0])}, which is no layer of {MANIFEST}")
    for layer, mask in export.masks.items() if spec.sparsities is not None else ():
        if layer not in spec.sparsities:
            raise Edited(SPARSITIES, f"was edited: it has no sparsity for {layer}")
        missed = abs(mask.numel() * spec.sparsities[layer] - (mask.numel() - int(mask.sum())))
        if missed > spec.pattern_of(layer, experiment.pattern).rounding_unit((mask.shape[0], mask.shape[1])):
            raise Edited(SPARSITIES, f"was edited: the mask of {layer} has another sparsity")
