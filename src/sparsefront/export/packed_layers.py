"""The pruned layers of a network in their storage formats, in memory: what an export keeps on disk."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Protocol

import torch
from sparsefront_kernels import SparseFormat, mask_structure
from torch import Tensor, nn

from sparsefront.export.manifest import LayerRecord, Manifest
from sparsefront.export.stored_weight import store
from sparsefront.masks.permutation import Permutation
from sparsefront.masks.weight_view import as_matrix
from sparsefront.patterns.base import Pattern
from sparsefront.patterns.records import label

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
    """Store every masked layer as its pattern says; arguments and errors as of `export.checkpoint.write_export`."""
    layers: dict[str, LayerRecord] = {}
    kept_of: dict[str, Tensor] = {}
    formats: dict[str, SparseFormat] = {}
    for name, mask in masks.items():
        weight = net.get_submodule(name).weight.detach()
        matrix, kept = as_matrix(weight).cpu(), as_matrix(mask).cpu()
        _check_zeros(name, matrix, kept)
        own = (sparsities or {}).get(name)
        layer_pattern = (patterns or {}).get(name, pattern)
        permutation = (permutations or {}).get(name)
        _check_structure(name, layer_pattern, kept, sparsity if own is None else own, permutation)
        family, parameters = storage_of(layer_pattern, kept, sparsity, own)
        stored = _store(name, matrix, kept, (family, parameters), permutation)
        kept_of[name], formats[name] = kept, stored
        nnz, shape = int(kept.sum()), (matrix.shape[0], matrix.shape[1])
        density = nnz / kept.numel()
        obeys = None if name not in (patterns or {}) else label(layer_pattern)
        layers[name] = LayerRecord(family, parameters, stored.meta(), shape, nnz, density, obeys)
    manifest = Manifest(
        pattern=None if pattern is None else pattern.name,
        pattern_parameters=dataclasses.asdict(pattern) if dataclasses.is_dataclass(pattern) else {},
        sparsity=sparsity,
        layers=layers,
        dense_layers=dict(dense_reasons or {}),
        pattern_class=None if pattern is None else f"{type(pattern).__module__}.{type(pattern).__qualname__}",
    )
    return PackedLayers(manifest, kept_of, formats, dict(net.state_dict()))


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
    left = int(torch.count_nonzero(matrix[~mask]))
    if left:
        raise ValueError(f"{name}: {left} pruned weights are not zero; apply the masks first")
