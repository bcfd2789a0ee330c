"""Write and read exports: safetensors and JSON only, nothing is ever unpickled.

    model.safetensors       plain state dict with exact zeros where a mask is False
    masks.safetensors       layer -> one bit per weight, 1 = keep; see `pruning.mask_spec`
    compressed.safetensors  "<layer>.<tensor>" -> the tensors of the layer's canonical format; none for dense layers, whose
                            weights are in model.safetensors
    blocks.json             only if blocks were removed: block -> its name in model.safetensors, null if removed
    structure.json          only if the network was made smaller before it was pruned: `pruning.structure`
    manifest.json           pattern, canonical format per layer, and why other layers stayed dense

`load_state_dict` and `from_pretrained` read the first file. The folder is self-contained and may be copied. In the store
model.safetensors is a hard link to the recovered weights, which takes no extra space: do not modify it in place.
"""

import dataclasses
import json
import logging
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from sparsefront_kernels import FORMATS, SparseFormat
from torch import Tensor, nn

from sparsefront.artifacts.bounded_files import read_json_bounded
from sparsefront.artifacts.durable import link_or_copy, save_tensors
from sparsefront.errors import InvalidSetting, failure_reason, first_line
from sparsefront.export.packed_layers import DENSE, TAP_BY_TAP, LayerRecord, Manifest, pack_layers
from sparsefront.masks.weight_view import Permutation, as_matrix, like_weight
from sparsefront.models.base import Model, is_of_transformers, save_config
from sparsefront.patterns.base import Pattern
from sparsefront.pruning.mask_spec import MaskSpec, load_blocks, load_masks, load_structure, save_masks
from sparsefront.pruning.structure import Structure, unlike_config

log = logging.getLogger(__name__)
ORIGINAL_CONFIG = "original_config.json"  # of a network of transformers before its layers got widths of their own
MODEL, MASKS, COMPRESSED, MANIFEST = "model.safetensors", "masks.safetensors", "compressed.safetensors", "manifest.json"


def write_export(
    directory: Path,
    net: nn.Module,
    masks: Mapping[str, Tensor],
    *,
    pattern: Pattern | None,
    sparsity: float,
    permutations: Mapping[str, Permutation] | None = None,
    sparsities: Mapping[str, float] | None = None,
    patterns: Mapping[str, Pattern] | None = None,
    dense_reasons: Mapping[str, str] | None = None,
    model: Model | None = None,
    weights: Path | None = None,
) -> Manifest:
    """Write a pruned network into an existing directory.

    Args:
        net: weights already zero where their mask is False.
        masks: layer -> bool, [N, K] or shaped as the weight, True = keep. If blocks were removed, keys are names before that.
        pattern: decides how layers are stored; None: the structure of each mask does.
        sparsity: target of the whole network, for the manifest, and of every layer without an entry in `sparsities`.
        permutations: layer -> permutation in which its mask obeys the pattern; absent for the identity.
        sparsities: layer -> its own final sparsity, if the allocation assigned one. The storage may depend on it (the window of
            n:m); a layer of sparsity 0 is stored dense.
        patterns: layer -> its own pattern, if layers have different ones; others use `pattern`.
        dense_reasons: prunable layers without a mask -> why.
        model: adds the files of its own library. Without it a network of transformers gets its config.json, unless it became
            narrower and no configuration can describe that.
        weights: a safetensors file with the net's state dict and metadata {"format": "pt"}, to hard-link instead of writing the
            weights again, if the file system can.
    Raises:
        ValueError: a pruned weight is not zero, a mask has another shape than its weight, or the pattern's format
            cannot store a mask; the layer is named.
    """
    packed = pack_layers(
        net,
        masks,
        pattern=pattern,
        sparsity=sparsity,
        permutations=permutations,
        sparsities=sparsities,
        patterns=patterns,
        dense_reasons=dense_reasons,
    )
    compressed = {
        f"{name}.{key}": tensor
        for name, stored in packed.formats.items()
        if stored.family != DENSE
        for key, tensor in stored.tensors().items()
    }
    shaped = dict(masks)
    if pattern is None or not pattern.takes_blocks:
        shaped = {name: like_weight(mask, net.get_submodule(name).weight) for name, mask in packed.masks.items()}
    if weights is None:
        _save(plain_state_dict(net), directory / MODEL)
    else:
        link_or_copy(weights, directory / MODEL)
    save_masks(shaped, directory / MASKS)
    _save(compressed, directory / COMPRESSED)
    why = unlike_config(net)
    if why is not None:
        if is_of_transformers(net):
            save_config(net, directory, ORIGINAL_CONFIG)
        log.warning(
            "export: no config.json, which could not describe this network (sf.from_pretrained opens it): %s", why
        )
    elif model is not None:
        model.save_pretrained_files(net, directory)
    elif is_of_transformers(net):
        save_config(net, directory)
    (directory / MANIFEST).write_text(json.dumps(packed.manifest.to_json(), indent=2) + "\n", encoding="utf-8")
    return packed.manifest


def plain_state_dict(net: nn.Module) -> dict[str, Tensor]:
    """The state dict on the CPU without shared storage, which safetensors rejects.

    A weight with two names (tied, or of a module with two parents) is written twice, so that strict loading finds both.

    Raises:
        InvalidSetting: an entry that is no tensor, such as from a module's `get_extra_state`.
    """
    own: dict[str, Tensor] = {}
    taken: set[int] = set()
    for name, tensor in net.state_dict().items():
        if not isinstance(tensor, Tensor):
            allowed = f"has {name!r} in its state dict, a {type(tensor).__name__}: safetensors holds tensors alone"
            raise InvalidSetting("net", type(net).__name__, allowed)
        tensor = tensor.detach().cpu().contiguous()
        storage = tensor.untyped_storage().data_ptr()
        own[name] = tensor.clone() if storage in taken else tensor
        taken.add(storage)
    return own


@dataclasses.dataclass(frozen=True)
class Export:
    """An export on disk; tensors are read lazily."""

    directory: Path
    manifest: Manifest

    @cached_property
    def masks(self) -> dict[str, Tensor]:
        """layer -> bool [N, K], True = keep.

        Raises:
            ValueError: the masks' layers differ from the manifest's.
        """
        stored = load_masks(self.directory / MASKS)
        differ = stored.keys() ^ self.manifest.layers.keys()
        if differ:
            raise ValueError(f"{MASKS} and {MANIFEST} name other layers: {', '.join(sorted(differ)[:3])}")
        return {name: as_matrix(stored[name]) for name in self.manifest.layers}

    @cached_property
    def blocks(self) -> dict[str, str | None] | None:
        """`MaskSpec.blocks`.

        Raises:
            ValueError: a damaged file.
        """
        return load_blocks(self.directory)

    @cached_property
    def structure(self) -> Structure:
        """`MaskSpec.structure`; raises as `blocks`."""
        return load_structure(self.directory)

    @property
    def spec(self) -> MaskSpec:
        """The masks' spec with its `blocks` and `structure` alone."""
        return MaskSpec(blocks=self.blocks, structure=self.structure)

    def state_dict(self) -> dict[str, Tensor]:
        """All weights and buffers, on the CPU, in their exported dtypes."""
        return load_file(self.directory / MODEL)

    def format(self, layer: str) -> SparseFormat:
        """The layer in its canonical format, on the CPU."""
        record = self.manifest.layers[layer]
        if record.family == DENSE:  # also in compressed.safetensors in exports of version 1
            with safe_open(self.directory / MODEL, framework="pt") as weights:
                values = stored_matrix(record, weights.get_tensor(f"{layer}.weight"))
                return FORMATS[DENSE].from_tensors({"values": values}, record.meta)
        prefix = f"{layer}."
        with safe_open(self.directory / COMPRESSED, framework="pt") as stored:
            # Layers may nest ("fc" and "fc.inner"): a tensor's own name has no dot.
            keys = [key for key in stored.keys() if key.startswith(prefix) and "." not in key[len(prefix) :]]
            tensors = {key[len(prefix) :]: stored.get_tensor(key) for key in keys}
        return FORMATS[record.family].from_tensors(tensors, record.meta)


def stored_matrix(record: LayerRecord, weight: Tensor) -> Tensor:
    """A layer's weight from the state dict as [N, K]."""
    return weight.t().contiguous() if record.transposed else as_matrix(weight)


def read_export(directory: Path) -> Export:
    """Open what `write_export` wrote.

    Raises:
        InvalidSetting: a file is missing, or convolutions have the column order of earlier versions (key `path`).
        ValueError: another format version, or a manifest that cannot be read.
    """
    for name in (MODEL, MASKS, COMPRESSED, MANIFEST):
        if not (directory / name).is_file():
            raise InvalidSetting("path", directory, f"is not an export: {name} is missing")
    try:
        manifest = Manifest.from_json(read_json_bounded(directory / MANIFEST))
    except ValueError as error:
        raise ValueError(f"{MANIFEST} cannot be read: {error}") from error
    export = Export(directory, manifest)
    if export.manifest.format_version < TAP_BY_TAP:
        _require_same_order(export)
    return export


@contextmanager
def damage_as_value_error() -> Iterator[None]:
    """Convert any library's error about a damaged export to a ValueError with one line."""
    try:
        yield
    except (InvalidSetting, MemoryError):
        raise
    except (
        OSError,
        ValueError,
        KeyError,
        TypeError,
        IndexError,
        AttributeError,
        RuntimeError,
        SafetensorError,
    ) as error:
        raise ValueError(failure_reason(error) if isinstance(error, KeyError) else first_line(error)) from error


def _require_same_order(export: Export) -> None:
    """Raise InvalidSetting for layers whose column order changed with `TAP_BY_TAP`: those with several taps and channels."""
    stored = [name for name, record in export.manifest.layers.items() if record.family != DENSE]
    with safe_open(export.directory / MODEL, framework="pt") as weights:
        shapes = {name: weights.get_slice(f"{name}.weight").get_shape() for name in stored}
    moved = [name for name, (_, inputs, *taps) in shapes.items() if inputs > 1 and math.prod(taps) > 1]
    if moved:
        more = f" and {len(moved) - 1} more" if len(moved) > 1 else ""
        raise InvalidSetting(
            "path",
            export.directory,
            f"is an export of format version {export.manifest.format_version}, which orders the inputs of convolutions "
            f"otherwise ({moved[0]}{more}): export the network again",
        )


def _save(tensors: dict[str, Tensor], path: Path) -> None:
    # Formats may store several views of one buffer; each is saved as a separate tensor.
    save_tensors(path, {name: tensor.contiguous() for name, tensor in tensors.items()}, {"format": "pt"})
