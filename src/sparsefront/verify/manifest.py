"""What an export's manifest.json states, against the record and the masks: no digest of a record covers it."""

from pathlib import PurePath
from typing import Any

from sparsefront.errors import Edited
from sparsefront.export.checkpoint import Export
from sparsefront.export.manifest import Manifest
from sparsefront.patterns.base import Pattern
from sparsefront.patterns.records import CLASS, to_record
from sparsefront.report.result import Result


def check_manifest(result: Result, export: Export) -> None:
    """Check sparsity, settings of the pattern and dense layers by the record; shapes and counts by the masks, whose own digest
    was checked before.

    Raises:
        Edited: one of them is something else; names it.
    """
    manifest, recorded = export.manifest, result.choice.pattern_parameters
    _require("sparsity", manifest.sparsity, result.sparsity.sparsity_target)
    for key, value in manifest.pattern_parameters.items():
        if key in recorded:
            _require(f"pattern_parameters.{key}", _as_recorded(value), recorded[key])
    for layer, reason in manifest.dense_layers.items():
        _require(f"dense_layers.{layer}", reason, result.sparsity.dense_layers.get(layer))
    for layer, stated in manifest.layers.items():
        mask = export.masks[layer]
        nnz = int(mask.sum())
        for name, value in (("shape", tuple(mask.shape)), ("nnz", nnz), ("density", nnz / mask.numel())):
            _require(f"layers.{layer}.{name}", getattr(stated, name), value)


def check_pattern(manifest: Manifest, pattern: Pattern) -> None:
    """Check that an export names the pattern that the result's configuration builds; the record holds its option's name alone.

    Raises:
        Edited: it names another one.
    """
    if manifest.pattern is not None:
        _require("pattern", manifest.pattern, pattern.name)
    if manifest.pattern_class is not None:
        _require("pattern_class", manifest.pattern_class, to_record(pattern)[CLASS])


def _as_recorded(value: Any) -> Any:
    """A record holds only the last part of a path, since it names no machine."""
    return PurePath(value).name if isinstance(value, str) else value


def _require(key: str, stated: Any, expected: Any) -> None:
    if stated != expected:
        raise Edited("manifest.json", f"was edited: its {key} is {stated!r}, where {expected!r} was measured")
