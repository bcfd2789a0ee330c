"""The pruned layers of a network in their storage formats, and the manifest that describes them."""

import dataclasses
import json
import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, ClassVar, Protocol

import torch
from pydantic import ConfigDict, Field, NonNegativeInt, TypeAdapter, ValidationError
from sparsefront_kernels import FORMATS, SparseFormat, mask_structure
from torch import Tensor, nn

from sparsefront.errors import first_line
from sparsefront.masks.weight_view import Permutation, as_matrix
from sparsefront.models.linears import Conv1DLinear
from sparsefront.patterns.base import Pattern, label

log = logging.getLogger(__name__)

# What an export says about itself: its pattern and how each pruned layer is stored; kernels are chosen at the swap.

# A manifest may come from anyone: JSON of these types, and of no others.
_STRICT = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)

# 2: masks of one bit a weight, and dense layers in model.safetensors alone. Exports of version 1 are read as well.
# 3: columns of a convolution tap by tap, channels inside (see `masks.weight_view`); before, channel by channel, taps inside.
#    Earlier exports are read as well where both orders are one.
FORMAT_VERSION = 3
TAP_BY_TAP = 3  # the first version with this order


@dataclass(frozen=True)
class LayerRecord:
    """One pruned layer.

    Args:
        family: its storage, one of the kernel package's formats.
        parameters: what the format was made with.
        meta: what the format needs beside its tensors to be read back.
        shape: [N, K] of the weight as a matrix.
        nnz: weights kept, as the mask counts them.
        density: nnz / (N * K).
        pattern: its own, in a network of several patterns; None where it is that of the manifest, or the layer is dense.
        transposed: whether its weight in the state dict is [K, N], as that of a Conv1D.
    """

    family: str
    parameters: dict[str, Any]
    meta: dict[str, Any]
    shape: tuple[NonNegativeInt, NonNegativeInt]
    nnz: int
    density: float
    pattern: str | None = None
    transposed: bool = False
    __pydantic_config__: ClassVar[ConfigDict] = _STRICT


@dataclass(frozen=True)
class Manifest:
    """The whole export.

    Args:
        pattern: its name; None where it is not known.
        pattern_parameters: its settings.
        sparsity: the target of the whole network.
        layers: the pruned ones.
        dense_layers: prunable layer -> why it stayed dense.
        pattern_class: package.module.Class of the pattern; None in exports of earlier versions.
    """

    pattern: str | None
    pattern_parameters: dict[str, Any]
    sparsity: Annotated[float, Field(ge=0, lt=1)]
    layers: dict[str, LayerRecord] = field(default_factory=dict)
    dense_layers: dict[str, str] = field(default_factory=dict)
    format_version: int = FORMAT_VERSION
    pattern_class: str | None = None
    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, content: Any) -> "Manifest":
        """The manifest that `to_json` gave.

        Raises:
            ValueError: another format version, an entry that is missing or that there is not, or one of another type.
        """
        version = content.get("format_version") if isinstance(content, dict) else None
        if version not in range(1, FORMAT_VERSION + 1):
            raise ValueError(f"an export of format version {version}, while this program reads up to {FORMAT_VERSION}")
        try:
            return TypeAdapter(cls).validate_json(json.dumps(content))
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            raise ValueError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None


# A masked weight in the format that its pattern names.


def store(
    weight: Tensor, mask: Tensor, storage: tuple[str, dict[str, Any]], permutation: Permutation | None = None
) -> SparseFormat:
    """A weight in the family and with the parameters that a pattern's `storage` names.

    Args:
        weight, mask: [N, K] in the network's order; the mask is bool, True = keep.
        permutation: the order in which the mask obeys its pattern, which the format then holds; None: its own.
    Raises:
        ValueError: the mask does not have the family's structure.
    """
    family, parameters = storage
    orders = {} if permutation is None else permutation.orders()
    return FORMATS[family].from_dense(weight, mask, **parameters, **orders)


DENSE = "dense"  # the one format that is the weight itself


class PackedWeights(Protocol):
    """Pruned layers in their formats, wherever they are kept: `PackedLayers`, or an `Export` on disk."""

    @property
    def manifest(self) -> Manifest: ...

    @property
    def masks(self) -> Mapping[str, Tensor]:
        """layer -> bool [N, K], True = keep, on the CPU."""
        ...

    def format(self, layer: str) -> SparseFormat:
        """The layer in its canonical format, on the CPU."""
        ...

    def state_dict(self) -> Mapping[str, Tensor]:
        """All weights and buffers of the network."""
        ...


def masks_stored_dense(packed: PackedWeights) -> dict[str, Tensor]:
    """layer -> bool [N, K], of layers that are stored as they are; empty where none of them is pruned."""
    stored = [name for name, record in packed.manifest.layers.items() if record.family == DENSE]
    if all(packed.manifest.layers[name].density == 1 for name in stored):
        return {}
    return {name: packed.masks[name] for name in stored}


@dataclasses.dataclass(frozen=True, eq=False)
class PackedLayers:
    """A `PackedWeights` in memory; the state dict is the network's own, not a copy."""

    manifest: Manifest
    masks: dict[str, Tensor]
    formats: dict[str, SparseFormat]
    weights: dict[str, Tensor]

    def format(self, layer: str) -> SparseFormat:
        return self.formats[layer]

    def state_dict(self) -> dict[str, Tensor]:
        return self.weights


def pack_layers(
    net: nn.Module,
    masks: Mapping[str, Tensor],
    *,
    pattern: Pattern | None,
    sparsity: float,
    permutations: Mapping[str, Permutation] | None = None,
    sparsities: Mapping[str, float] | None = None,
    patterns: Mapping[str, Pattern] | None = None,
    dense_reasons: Mapping[str, str] | None = None,
) -> PackedLayers:
    """Store every masked layer as its pattern says, none of a pattern that takes whole blocks: what it leaves is dense. Arguments
    and errors as of `export.checkpoint.write_export`.
    """
    layers: dict[str, LayerRecord] = {}
    kept_of: dict[str, Tensor] = {}
    formats: dict[str, SparseFormat] = {}
    for name, mask in masks.items():
        if pattern is not None and pattern.takes_blocks:
            kept_of[name] = kept = as_matrix(mask).cpu()
            density = int(kept.sum()) / kept.numel()
            layers[name] = LayerRecord(DENSE, {}, {}, (kept.shape[0], kept.shape[1]), int(kept.sum()), density)
            continue
        weight = net.get_submodule(name).weight.detach()
        layer_pattern = (patterns or {}).get(name, pattern)
        own = (sparsities or {}).get(name), (permutations or {}).get(name)
        given = as_matrix(weight), as_matrix(mask), layer_pattern, sparsity, *own
        kept, stored, (family, parameters) = _where_it_lies(name, *given)
        kept_of[name], formats[name] = kept, stored
        nnz, shape = int(kept.sum()), (kept.shape[0], kept.shape[1])
        density = nnz / kept.numel()
        obeys = None if name not in (patterns or {}) else label(layer_pattern)
        transposed = isinstance(net.get_submodule(name), Conv1DLinear)
        layers[name] = LayerRecord(family, parameters, stored.meta(), shape, nnz, density, obeys, transposed)
    manifest = Manifest(
        pattern=None if pattern is None else pattern.name,
        pattern_parameters=dataclasses.asdict(pattern) if dataclasses.is_dataclass(pattern) else {},
        sparsity=sparsity,
        layers=layers,
        dense_layers=dict(dense_reasons or {}),
        pattern_class=None if pattern is None else f"{type(pattern).__module__}.{type(pattern).__qualname__}",
    )
    return PackedLayers(manifest, kept_of, formats, dict(net.state_dict()))


Packed = tuple[Tensor, SparseFormat, tuple[str, dict[str, Any]]]


def _where_it_lies(name: str, weight: Tensor, mask: Tensor, *more: Any) -> Packed:
    """`_checked_and_stored` on the weight's device, whence all comes to the CPU: a GPU takes milliseconds for what takes a
    processor seconds. A pattern of the user's own may know no other device than the CPU.
    """
    if weight.device.type != "cpu":
        try:
            kept, stored, storage = _checked_and_stored(name, weight, mask.to(weight.device), *more)
            return kept.cpu(), stored.to("cpu"), storage
        except RuntimeError as error:
            log.warning("%s is packed on the CPU, which takes longer: %s", name, first_line(error))
    return _checked_and_stored(name, weight.cpu(), mask.cpu(), *more)


def _checked_and_stored(
    name: str,
    weight: Tensor,
    mask: Tensor,
    pattern: Pattern | None,
    sparsity: float,
    own: float | None,
    permutation: Permutation | None,
) -> Packed:
    """The mask, the weight in its format, and what `storage_of` says of it; arguments and errors as of `pack_layers`."""
    _check_zeros(name, weight, mask)
    _check_structure(name, pattern, mask, sparsity if own is None else own, permutation)
    storage = storage_of(pattern, mask, sparsity, own)
    return mask, _store(name, weight, mask, storage, permutation), storage


def storage_of(pattern: Pattern | None, mask: Tensor, sparsity: float, own: float | None) -> tuple[str, dict[str, Any]]:
    """Family and parameters of a layer with this mask; `own`: its own sparsity, where the allocation assigned one."""
    if pattern is None:
        return mask_structure(mask)
    if own == 0:
        return DENSE, {}
    return pattern.storage((mask.shape[0], mask.shape[1]), sparsity if own is None else own)


def _store(
    name: str, matrix: Tensor, mask: Tensor, storage: tuple[str, dict[str, Any]], permutation: Permutation | None
) -> SparseFormat:
    try:
        return store(matrix, mask, storage, permutation)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error


def _check_structure(
    name: str, pattern: Pattern | None, mask: Tensor, sparsity: float, permutation: Permutation | None
) -> None:
    """A recovery, or a user, may have changed the mask since the pattern made it."""
    if pattern is None or sparsity == 0:
        return
    try:
        pattern.check(mask, sparsity, permutation)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error


def _check_zeros(name: str, matrix: Tensor, mask: Tensor) -> None:
    if mask.shape != matrix.shape or mask.dtype != torch.bool:
        raise ValueError(
            f"{name}: a bool mask {tuple(matrix.shape)} was expected, got {mask.dtype} {tuple(mask.shape)}"
        )
    left = int(((matrix != 0) & ~mask).sum())
    if left:
        raise ValueError(f"{name}: {left} pruned weights are not zero; apply the masks first")
