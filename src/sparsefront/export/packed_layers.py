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

# The manifest: pattern and storage of each pruned layer; kernels are chosen in the swap.

# A manifest may come from anyone, so that its JSON is checked strictly.
_STRICT = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)

# 2: masks have one bit per weight, and dense layers are in model.safetensors alone. Version 1 can still be read.
# 3: columns of a convolution are ordered by tap, then channel (see `masks.weight_view`); before, by channel, then tap. Earlier
#    exports can still be read if both orders are the same.
FORMAT_VERSION = 3
TAP_BY_TAP = 3  # the first version ordered by tap


@dataclass(frozen=True)
class LayerRecord:
    """One pruned layer.

    Args:
        family: storage format, one of the kernel package's.
        parameters: arguments of the format's `from_dense`.
        meta: non-tensor state of the format.
        shape: [N, K] of the weight as a matrix.
        nnz: weights kept by the mask.
        density: nnz / (N * K).
        pattern: its own, in a network of several patterns; None if it is the manifest's, or the layer is dense.
        transposed: whether its weight in the state dict is [K, N], as in a Conv1D.
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
        pattern: its name; None if unknown.
        pattern_parameters: its settings.
        sparsity: target of the whole network.
        layers: pruned layers.
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
        """Parse the output of `to_json`.

        Raises:
            ValueError: another format version, a missing or unknown entry, or one of another type.
        """
        version = content.get("format_version") if isinstance(content, dict) else None
        if version not in range(1, FORMAT_VERSION + 1):
            raise ValueError(f"an export of format version {version}, while this program reads up to {FORMAT_VERSION}")
        try:
            return TypeAdapter(cls).validate_json(json.dumps(content))
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            raise ValueError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None


def store(
    weight: Tensor, mask: Tensor, storage: tuple[str, dict[str, Any]], permutation: Permutation | None = None
) -> SparseFormat:
    """Store a weight in the family and with the parameters from a pattern's `storage`.

    Args:
        weight, mask: [N, K] in the network's order; the mask is bool, True = keep.
        permutation: in which the mask obeys its pattern, stored in the format; None: the identity.
    Raises:
        ValueError: the mask does not have the family's structure.
    """
    family, parameters = storage
    orders = {} if permutation is None else permutation.orders()
    return FORMATS[family].from_dense(weight, mask, **parameters, **orders)


DENSE = "dense"  # the family that stores the weight itself


class PackedWeights(Protocol):
    """Pruned layers in their formats: `PackedLayers` in memory, or an `Export` on disk."""

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
    """layer -> bool [N, K], for layers that are stored dense; empty if none of them is pruned."""
    stored = [name for name, record in packed.manifest.layers.items() if record.family == DENSE]
    if all(packed.manifest.layers[name].density == 1 for name in stored):
        return {}
    return {name: packed.masks[name] for name in stored}


@dataclasses.dataclass(frozen=True, eq=False)
class PackedLayers:
    """`PackedWeights` in memory; the state dict shares the network's tensors."""

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
    """Store every masked layer in its pattern's format, dense for a pattern that removes blocks. Arguments and errors as in
    `export.checkpoint.write_export`.
    """
    layers: dict[str, LayerRecord] = {}
    kept_of: dict[str, Tensor] = {}
    formats: dict[str, SparseFormat] = {}
    for name, mask in masks.items():
        if pattern is not None and pattern.takes_blocks:
            kept_of[name] = keeps = as_matrix(mask).cpu()
            density = int(keeps.sum()) / keeps.numel()
            layers[name] = LayerRecord(DENSE, {}, {}, (keeps.shape[0], keeps.shape[1]), int(keeps.sum()), density)
            continue
        weight = net.get_submodule(name).weight.detach()
        layer_pattern = (patterns or {}).get(name, pattern)
        own = (sparsities or {}).get(name), (permutations or {}).get(name)
        arguments = as_matrix(weight), as_matrix(mask), layer_pattern, sparsity, *own
        keeps, stored, (family, parameters) = _pack_on_own_device(name, *arguments)
        kept_of[name], formats[name] = keeps, stored
        nnz, shape = int(keeps.sum()), (keeps.shape[0], keeps.shape[1])
        density = nnz / keeps.numel()
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


def _pack_on_own_device(name: str, weight: Tensor, mask: Tensor, *more: Any) -> Packed:
    """`_check_and_store` on the weight's device, which is faster on a GPU (milliseconds instead of seconds), with the result on
    the CPU. Falls back to the CPU for user-defined patterns that only support it.
    """
    if weight.device.type != "cpu":
        try:
            keeps, stored, storage = _check_and_store(name, weight, mask.to(weight.device), *more)
            return keeps.cpu(), stored.to("cpu"), storage
        except RuntimeError as error:
            log.warning("%s is packed on the CPU, which takes longer: %s", name, first_line(error))
    return _check_and_store(name, weight.cpu(), mask.cpu(), *more)


def _check_and_store(
    name: str,
    weight: Tensor,
    mask: Tensor,
    pattern: Pattern | None,
    sparsity: float,
    own: float | None,
    permutation: Permutation | None,
) -> Packed:
    """The mask, the weight in its format, and its `storage_of`; arguments and errors as in `pack_layers`."""
    _check_zeros(name, weight, mask)
    _check_structure(name, pattern, mask, sparsity if own is None else own, permutation)
    storage = storage_of(pattern, mask, sparsity, own)
    return mask, _store(name, weight, mask, storage, permutation), storage


def storage_of(pattern: Pattern | None, mask: Tensor, sparsity: float, own: float | None) -> tuple[str, dict[str, Any]]:
    """Family and parameters of a layer with this mask; `own`: its own sparsity, if the allocation assigned one."""
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
    """Check the mask against its pattern: a recovery, or a user, may have changed it."""
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
