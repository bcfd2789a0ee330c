"""What a stored result says of itself and of its files, against what is there now."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from safetensors import SafetensorError
from torch import Tensor
from yaml import YAMLError

from sparsefront.artifacts.content_digest import file_digest
from sparsefront.artifacts.record_digest import record_digest
from sparsefront.errors import Edited, InvalidSetting
from sparsefront.export.checkpoint import Export, read_export
from sparsefront.export.tensors_digest import tensors_digest
from sparsefront.masks.weight_view import as_matrix
from sparsefront.report.result import Result
from sparsefront.runs import linked_checkpoint
from sparsefront.verify.manifest import check_manifest


def read_record(file: Path) -> Result:
    """The result of a `row.json`, whose digest holds, and those of the files beside it that are there.

    Raises:
        InvalidSetting: no result, or one of an earlier version, which holds no digest.
        Edited: the record, or one of its files, is not what was stored.
    """
    try:
        text = file.read_text()
        result, content = Result.from_json(text), json.loads(text, object_pairs_hook=_once_each)
    except Edited:
        raise
    except (OSError, ValueError) as error:
        raise InvalidSetting("row", file, f"is no result that can be read: {error}") from error
    identity = result.identity
    if identity.record_sha256 is None:
        raise InvalidSetting("row", file, "holds no record_sha256: it was taken away, or an earlier version wrote it")
    if record_digest(content) != identity.record_sha256:
        raise Edited("record", "was edited after it was stored: what it states does not have its record_sha256")
    files = {result.speed.samples_file: identity.samples_sha256, result.quality.outcomes_file: identity.outcomes_sha256}
    for name, stored in files.items():
        if name is not None and (path := file.parent / Path(name).name).is_file() and file_digest(path) != stored:
            raise Edited(path.name, "was edited after it was stored: its sha256 is not the one of the record")
    return result


def _once_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of a record. Of two entries of one name a reader sees the first and a program the last."""
    content = dict(pairs)
    if len(content) < len(pairs):
        twice = Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise Edited("record", f"was edited after it was stored: it states {twice} twice")
    return content


def find_export(result: Result, row: Path, checkpoint: Path | None, cache_dir: Path | None) -> Export | None:
    """The exported network of a result; None for pattern=dense, which exports none.

    Args:
        row: file of the result, in whose folder a link may lead to it.
        checkpoint: the folder, where it was named.
        cache_dir: of the run; None: what the run recorded.
    Raises:
        InvalidSetting: it is not there.
        Edited: it cannot be read.
    """
    if result.identity.checkpoint is None:
        return None
    places = [checkpoint] if checkpoint else [linked_checkpoint(row.parent)]
    # a link may be relative, and leads nowhere once the run's folder is moved
    if not checkpoint and (cache := cache_dir or _recorded_cache(row.parent)):
        places.append(cache / result.identity.checkpoint)
    folder = next((place for place in places if place is not None and place.is_dir()), None)
    if folder is None:
        allowed = "is not there any more: name the exported network with --checkpoint, or make it again with run.py"
        raise InvalidSetting("checkpoint", checkpoint or result.identity.checkpoint, allowed)
    try:
        return read_export(folder)
    except InvalidSetting:
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise Edited(str(folder), f"cannot be read: {error}") from error


def _recorded_cache(folder: Path) -> Path | None:
    """`cache_dir` of the configuration that Hydra kept in a run's folder; None where that does not tell."""
    try:
        return Path(OmegaConf.load(folder / ".hydra" / "config.yaml").cache_dir)
    except (OSError, YAMLError, OmegaConfBaseException, AttributeError, TypeError):
        return None


def check_export(result: Result, export: Export) -> None:
    """Check that an exported network is the one that a result was measured of, in all three forms that it is stored in.

    Raises:
        Edited: weights or masks have another digest, the manifest states something else, a pruned weight is not zero, or a
            layer's compressed form is not its weight.
    """
    try:
        weights, masks = export.state_dict(), export.masks
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise Edited(str(export.directory), f"cannot be read: {error}") from error
    for part, tensors, stored in (
        ("masks", masks, result.identity.masks_sha256),
        ("weights", weights, result.identity.weights_sha256),
    ):
        if tensors_digest(tensors) != stored:
            raise Edited(part, f"are not those that were measured: their sha256 is not the {part}_sha256 of the record")
    check_manifest(result, export)
    for layer in export.manifest.layers:
        weight = as_matrix(weights[f"{layer}.weight"])
        if bool(weight.masked_fill(masks[layer], 0.0).any()):
            raise Edited(f"weights of {layer}", "are not zero where its mask prunes them")
        if not torch.equal(_stored(export, layer).to(weight.dtype), weight):
            raise Edited(
                f"compressed weights of {layer}", "are not its weights: the kernels would compute something else"
            )


def _stored(export: Export, layer: str) -> Tensor:
    """The layer's weight from its compressed form, [N, K]; of one that cannot be read, nothing."""
    try:
        return export.format(layer).to_dense()
    except (OSError, ValueError, KeyError, IndexError, RuntimeError, SafetensorError):
        return torch.empty(0)
