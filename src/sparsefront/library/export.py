"""A pruned network in a folder, and back."""

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor, nn

from sparsefront.errors import InvalidSetting
from sparsefront.export.checkpoint import Export, read_export, write_export
from sparsefront.export.manifest import Manifest
from sparsefront.library.fitting import misfit_of
from sparsefront.library.inputs import require_network
from sparsefront.library.layers import weight_of
from sparsefront.library.masks import Masks, require_masks_of
from sparsefront.masks.weight_view import like_weight
from sparsefront.models.base import Model
from sparsefront.patterns.base import Pattern
from sparsefront.patterns.records import CLASS, from_record, named_pattern
from sparsefront.pruning.mask_layout import MaskLayout
from sparsefront.pruning.settings import PruningSettings


def save(
    folder: Path | str,
    net: nn.Module,
    masks: Mapping[str, Tensor],
    *,
    model: Model | None = None,
    weights: Path | None = None,
) -> Export:
    """Write weights, masks and compressed layers: safetensors and JSON only.

    model.safetensors is a plain state dict that any tool loads; see `export.checkpoint` for the other files.

    Args:
        folder: made where it is missing; an export in it is replaced.
        net: masked, and not swapped: its pruned weights are zero.
        masks: from `prune` or `recover`, or any dict of layer name -> bool mask.
        model: adds what its own library wants beside the weights.
        weights: a safetensors file with the network's state dict, shared where the file system can.
    Raises:
        InvalidSetting: no masks, or masks of other layers than the network's; or a folder that cannot be made.
        ValueError: a pruned weight is not zero, or a mask breaks its pattern; names the layer.
    """
    require_masks_of(net, masks)
    known, directory = Masks.of(masks), Path(folder)
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidSetting("folder", folder, f"cannot be written ({error.strerror}); name another folder") from error
    write_export(
        directory,
        net,
        masks,
        pattern=None if known.pruning is None else known.pruning.pattern,
        sparsity=known.sparsity if known.pruning is None else known.pruning.sparsity,
        permutations=known.layout.permutations,
        sparsities=known.layout.sparsities,
        patterns=known.layout.patterns,
        dense_reasons=known.ignored,
        model=model,
        weights=weights,
    )
    known.layout.save(directory)
    return read_export(directory)


def load(folder: Path | str, net: nn.Module) -> Masks:
    """Read what `save` wrote, or a run exported: the weights into `net`, in place.

    Args:
        net: the architecture that was saved; its device and dtype stay.
    Returns:
        the masks, shaped like the weights and on their device, with their pattern.
    Raises:
        InvalidSetting: no export in the folder, or one of another architecture; names the first few differences.
    """
    require_network(net)
    try:
        export = read_export(Path(folder))
    except InvalidSetting as error:
        raise InvalidSetting("folder", folder, error.allowed) from error
    _load_weights(net, export, folder)
    masks = {}
    for name, mask in export.masks.items():
        weight = weight_of(net, name)
        masks[name] = like_weight(mask, weight).to(weight.device)
    pattern = _pattern(export.manifest)
    return Masks(
        masks,
        pruning=None if pattern is None else PruningSettings(pattern, export.manifest.sparsity),
        layout=MaskLayout.load(export.directory),
        ignored=export.manifest.dense_layers,
    )


def _load_weights(net: nn.Module, export: Export, folder: Path | str) -> None:
    weights = export.state_dict()
    if complaint := misfit_of(weights, net.state_dict()):
        raise InvalidSetting("folder", folder, complaint)
    net.load_state_dict(weights)


def _pattern(manifest: Manifest) -> Pattern | None:
    """The pattern that made the export; None where it is not known. Its class may be a user's own."""
    if manifest.pattern is None:
        return None
    if manifest.pattern_class is None:
        return named_pattern(manifest.pattern, **manifest.pattern_parameters)
    return from_record({CLASS: manifest.pattern_class, **manifest.pattern_parameters})
