"""Read and check a stored result's record and export, without evaluating anything."""

import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sparsefront.artifacts.bounded_files import (
    load_yaml_bounded,
    parse_json_bounded,
    read_json_bounded,
    read_text_bounded,
)
from sparsefront.artifacts.content_digest import digest, file_digest, find_damage
from sparsefront.artifacts.store import RECORD
from sparsefront.artifacts.store import read_record as read_stage_record
from sparsefront.config.experiment import Experiment
from sparsefront.config.schema import GROUPS
from sparsefront.errors import Edited, InvalidSetting
from sparsefront.export.checkpoint import MANIFEST, Export, damage_as_value_error, read_export, stored_matrix
from sparsefront.export.packed_layers import FORMAT_VERSION, Manifest, storage_of
from sparsefront.measure.problems import dataset_size_text, size_text
from sparsefront.measure.speedup import SPEEDUP_OVER, latency_over_batches, speedup_of
from sparsefront.measure.timers import summarise
from sparsefront.networks import tensors_digest
from sparsefront.options import program_command, shortened
from sparsefront.patterns.base import CLASS, label, to_record
from sparsefront.pruning.layers import KEEPS_ALL
from sparsefront.pruning.mask_spec import BLOCKS, PATTERNS, PERMUTATIONS, SPARSITIES, MaskSpec
from sparsefront.results.columns import collapsed_in
from sparsefront.results.record import (
    OF_DATASET,
    SCHEMA_VERSION,
    Result,
    Speed,
    record_digest,
)
from sparsefront.results.run_folder import HYDRA_FILE, recorded_overrides
from sparsefront.runs import LEFT_OUT, PATHS, linked_checkpoint
from sparsefront.stages.bench import OUTCOMES
from sparsefront.stages.measure import SAMPLES
from sparsefront.tasks.outcomes import Outcomes, load_outcomes

CONFIG_FILE = Path(".hydra") / "config.yaml"
COVERED = ("row.json", "samples.json", "outcomes.npz", "checkpoint", "checkpoint.txt", ".hydra")
NETWORKS = ("dense", "dense_low", "masked", "sparse")
TIMED = ("dense", "dense_low", "sparse")
CONTROLS = ("dense_continued", "dense_distilled")
NAMED_AT_MOST = 8
EQUAL = 1e-9  # relative tolerance for reading and writing numbers
METRIC_EQUAL = 1e-6  # for metrics computed in fp32 and stored as Python floats
SUMMED_EQUAL = 1e-5  # for SQuAD: older versions summed ten thousand questions in fp32, off by 5e-6


def read_record(file: Path) -> Result:
    """Read a `row.json` and verify its digest, and those of existing files next to it.

    Raises:
        InvalidSetting: not a result, or one of an earlier version without digest.
        Edited: the record, or one of its files, was changed.
    """
    try:
        text = read_text_bounded(file)
        content = parse_json_bounded(text, object_pairs_hook=_once_each)
        result = Result.from_json(text)
    except Edited:
        raise
    except ValueError as error:
        raise InvalidSetting("row", file, f"is no result that can be read: {error}") from error
    identity = result.identity
    if identity.record_sha256 is None:
        raise InvalidSetting("row", file, "holds no record_sha256: it was taken away, or an earlier version wrote it")
    if record_digest(content) != identity.record_sha256:
        raise Edited("record", "was edited after it was stored: what it states does not have its record_sha256")
    files = {result.speed.samples_file: identity.samples_sha256, result.quality.outcomes_file: identity.outcomes_sha256}
    for name, stored in files.items():
        if name is not None and (path := _beside(file, name)).exists() and _digest(path) != stored:
            raise Edited(path.name, "was edited after it was stored: its sha256 is not the one of the record")
    return result


def _beside(file: Path, name: str) -> Path:
    """The file next to the record, regardless of any folder in the name."""
    return file.parent / Path(name).name


def _digest(path: Path) -> str | None:
    return file_digest(path) if path.is_file() else None


def _once_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Reject duplicate keys in a record: a reader sees the first, a program the last."""
    content = dict(pairs)
    if len(content) < len(pairs):
        twice = Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise Edited("record", f"was edited after it was stored: it states {shortened(twice)} twice")
    return content


def check_numbers(result: Result, row: Path) -> None:
    """Check numbers that follow from others in the record: latencies and speedup from samples.json, metrics from outcomes.npz,
    collapsed layers from sparsities. A forger of one number and its digest may forget the others.

    Raises:
        Edited: a number does not follow; names it.
    """
    if (name := result.speed.samples_file) is not None and _beside(row, name).exists():
        _check_samples(result, _beside(row, name))
    for side, outcomes in (stored_outcomes(result, row) or {}).items():
        _check_outcomes(result, side, outcomes)
    _check_places(result)
    sparsity = result.sparsity
    if sparsity.collapsed_layers is not None:
        _require("collapsed_layers", sparsity.collapsed_layers, collapsed_in(result), "sparsity_per_layer")


def _check_places(result: Result) -> None:
    """Check that device facts are of either a GPU or a processor, that what was timed is among what was tried, and that the
    files have their standard names.
    """
    identity, speed, device = result.identity, result.speed, result.speed.latency_device
    if device not in (None, "cpu", "cuda"):
        raise Edited("record", f"was edited: latency_device is {shortened(device)}, which is neither cpu nor cuda")
    others = {"cpu": ("gpu", "driver", "cuda", "gpu_clock_mhz"), "cuda": ("processor", "threads")}
    for field in others.get(device or "", ()):
        if getattr(identity, field) is not None:
            raise Edited("record", f"was edited: {field} is stated of a latency on {device}")
    for side in TIMED:
        mode, variant = getattr(speed, f"execution_mode_{side}"), getattr(speed, f"{side}_variant")
        if variant is None:
            continue  # not timed, or an earlier version
        if variant.partition("+")[0] != mode:
            raise Edited("record", f"was edited: {side}_variant {shortened(variant)} is not of mode {shortened(mode)}")
        if speed.variant_medians_ms and f"{side}/{variant}" not in speed.variant_medians_ms:
            raise Edited("record", f"was edited: variant_medians_ms lacks {side}/{shortened(variant)}, which was timed")
    for field, name in (("samples_file", SAMPLES), ("outcomes_file", OUTCOMES)):
        stated = getattr(speed if field == "samples_file" else result.quality, field)
        if stated not in (None, name):
            raise Edited("record", f"was edited: {field} is {shortened(stated)}, where runs write {name}")
    if unknown := result.quality.extra_metrics.keys() - NETWORKS:
        raise Edited(
            "record", f"was edited: extra_metrics are of {', '.join(NETWORKS)}, not of {shortened(unknown.pop())}"
        )


def _check_samples(result: Result, file: Path) -> None:
    try:
        samples = read_json_bounded(file)
        timed = {side: [list(map(float, repeat)) for repeat in repeats] for side, repeats in samples.items()}
        for stated, network, batch in _timed_sizes(result, timed):
            _check_timing(stated, network, batch, file.name)
        _check_dataset(result.speed, timed, file.name)
    except Edited:
        raise
    except (ValueError, TypeError, AttributeError, IndexError, RuntimeError) as error:
        raise Edited(file.name, f"was edited: it holds no samples of latencies ({error})") from error
    speed = result.speed
    for side in TIMED if timed else ():
        if (repeats := timed.get(side)) is not None:
            _require("repeats", speed.repeats, len(repeats), file.name)
            _require("samples_per_repeat", {speed.samples_per_repeat}, set(map(len, repeats)), file.name)


def _timed_sizes(
    result: Result, timed: Mapping[str, list[list[float]]]
) -> Iterator[tuple[Mapping[str, Any], dict[str, list[list[float]]], int | None]]:
    """For the result's own size and each on its curve: stated values, samples by network, and batch size."""
    own = {side: repeats for side, repeats in timed.items() if " " not in side}
    yield vars(result.speed), own, result.speed.batch_size
    curve = [(point, size_text(point)) for point in result.speed.curve]
    of_dataset = [(entry, dataset_size_text(entry)) for entry in result.speed.dataset_lengths]
    parts = [(entry, f"{entry['part']} {size_text(entry)}") for entry in result.speed.parts]
    for point, size in [*curve, *of_dataset, *parts]:
        yield point, _samples_at(size, timed), None


def _samples_at(size: str, timed: Mapping[str, list[list[float]]]) -> dict[str, list[list[float]]]:
    return {side.partition(" ")[0]: repeats for side, repeats in timed.items() if side.partition(" ")[2] == size}


def _check_dataset(speed: Speed, timed: Mapping[str, list[list[float]]], source: str) -> None:
    """Check that the values for the data set's batches are the sums over its sizes."""
    sizes = [(entry["batches"], _samples_at(dataset_size_text(entry), timed)) for entry in speed.dataset_lengths]
    found = latency_over_batches(sizes) if sizes and all(samples for _, samples in sizes) else {}
    for key in OF_DATASET:
        stated = getattr(speed, key)
        if key in found:
            _require_close(key, stated, found[key], source)
        elif stated is not None:
            raise Edited(source, f"was edited: it has no samples for {key}, which the record states")


def _check_timing(
    stated: Mapping[str, Any], timed: dict[str, list[list[float]]], batch: int | None, source: str
) -> None:
    for side in TIMED:
        if side not in timed:
            if stated.get(f"latency_{side}_ms") is not None:
                raise Edited(source, f"was edited: it has no samples for latency_{side}_ms, which the record states")
            continue
        found = summarise(sum(timed[side], []))
        for ending, value in (("", found.median_ms), ("_p20", found.p20_ms), ("_p80", found.p80_ms)):
            _require_close(f"latency_{side}{ending}_ms", stated.get(f"latency_{side}{ending}_ms"), value, source)
        if batch is not None:
            key = f"throughput_{side}_samples_per_s"
            _require_close(key, stated.get(key), batch / found.median_ms * 1e3, source)
    if stated.get("fused_dense_latency_ms") is not None and "dense" in timed:
        fused = summarise(sum(timed.get("fused_dense", timed["dense"]), []))
        _require_close("fused_dense_latency_ms", stated["fused_dense_latency_ms"], fused.median_ms, source)
    for side, name in SPEEDUP_OVER.items():
        if {side, "sparse"} <= timed.keys():
            for key, value in speedup_of(timed[side], timed["sparse"]).to_json(name).items():
                _require_close(key, stated.get(key), value, source)


def stored_outcomes(result: Result, row: Path) -> dict[str, Outcomes] | None:
    """Per-sample outcomes of each network; None if the file is not available.

    Raises:
        Edited: it cannot be read.
    """
    name = result.quality.outcomes_file
    if name is None or not _beside(row, name).exists():
        return None
    try:
        return load_outcomes(_beside(row, name))
    except Exception as error:  # NumPy and zipfile can fail in any way on edited bytes
        raise Edited(name, f"cannot be read: {error}") from error


def _check_outcomes(result: Result, side: str, outcomes: Outcomes) -> None:
    source, quality = result.quality.outcomes_file or "outcomes.npz", result.quality
    if side not in (*NETWORKS, *CONTROLS):
        raise Edited(source, f"was edited: it holds outcomes of {shortened(side)}, which is no network of a result")
    _require("evaluated_samples", quality.evaluated_samples, len(outcomes), source)
    _require("metric_name", quality.metric_name, outcomes.metric, source)
    found, stated = outcomes.metric_over(np.arange(len(outcomes))), getattr(quality, side)
    allowed = SUMMED_EQUAL if result.choice.dataset == "squad" else METRIC_EQUAL
    if stated is None or not math.isclose(stated, found, abs_tol=allowed):
        raise Edited("record", f"was edited: it states {side}={stated}, where {source} gives {found:.6f}")


def configuration_difference(composed: Mapping[str, Any], row: Path, own: Sequence[str]) -> str | None:
    """Compare config.yaml next to a record with what the run's overrides compose in this version.

    Args:
        composed: the configuration as plain containers, with interpolations unresolved.
        own: overrides that the run did not have.
    Returns:
        a description of the first difference; None if there is none, or the file is not available.
    Raises:
        Edited: the file cannot be read.
    """
    free = (*LEFT_OUT, *PATHS, "trainer", *(text.partition("=")[0].lstrip("+~") for text in own))
    now = dict(_flat(dict(composed)))
    for key, stated in _flat(_yaml_beside(row, CONFIG_FILE)):
        if any(key == name or key.startswith(f"{name}.") for name in free):
            continue
        if key not in now or now[key] != stated:
            found = f"{now[key]} is composed" if key in now else "there is no such setting"
            return f"{shortened(key)} is {shortened(stated)} in it, where {found}"
    return None


def check_hydra_file(choices: Mapping[str, str], row: Path, own: Sequence[str]) -> None:
    """Check the overrides and chosen options in hydra.yaml next to a record; its other contents are Hydra's own.

    Args:
        choices: group -> name of its option, as composed.
        own: as in `configuration_difference`.
    Raises:
        Edited: they differ, or the file cannot be read.
    """
    content = _yaml_beside(row, HYDRA_FILE)
    hydra = content.get("hydra") if isinstance(content, dict) else None
    overrides, runtime = (hydra.get(part) if isinstance(hydra, dict) else None for part in ("overrides", "runtime"))
    told = overrides.get("task") if isinstance(overrides, dict) else None
    if told is not None and told != recorded_overrides(row.parent):
        raise Edited(str(HYDRA_FILE), "was edited: its overrides.task is not what overrides.yaml holds")
    chosen = runtime.get("choices") if isinstance(runtime, dict) else None
    replaced = {text.partition("=")[0].lstrip("+~") for text in own}
    for group in GROUPS if isinstance(chosen, dict) else ():
        if group in (*LEFT_OUT, "trainer", *replaced) or group not in chosen:
            continue
        if chosen[group] not in (choices.get(group), choices.get(group) == "default" and chosen[group]):
            was = choices.get(group)
            raise Edited(
                str(HYDRA_FILE), f"was edited: it chose {group}={shortened(chosen[group])}, where {was} was run"
            )


def _flat(content: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Flatten nested mappings to (dotted key, value); lists are values."""
    for key, value in content.items() if isinstance(content, dict) else ():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _yaml_beside(row: Path, name: Path) -> Any:
    """Load a YAML file next to the row; None if it is not available."""
    file = row.parent / name
    if not file.exists():
        return None
    try:
        return load_yaml_bounded(file)
    except ValueError as error:
        raise Edited(str(name), f"cannot be read: {error}") from error


def uncovered(folder: Path) -> list[str]:
    """Files of a run's folder that are not checked because they state nothing of their own, such as pictures; the first few."""
    names = (path.name for path in sorted(folder.iterdir()) if path.name not in COVERED)
    return [shortened(name, 60) for name in islice(names, NAMED_AT_MOST)]


def _require(key: str, stated: Any, found: Any, source: str) -> None:
    if stated != found:
        given = f"{shortened(stated)}, where {source} gives {shortened(found)}"
        raise Edited("record", f"was edited: it states {key}={given}")


def _require_close(key: str, stated: Any, found: float, source: str) -> None:
    if not isinstance(stated, int | float) or not math.isclose(stated, found, rel_tol=EQUAL):
        raise Edited("record", f"was edited: it states {key}={shortened(stated)}, where {source} gives {found:.6g}")


CHECKPOINT = re.compile(r"export/([0-9a-f]{16})")
NOTHING = "dense"  # the pattern without pruning


def find_export(result: Result, row: Path, checkpoint: Path | None, cache_dir: Path) -> Export | None:
    """Load the exported network of a result; None for pattern=dense, which exports none.

    Args:
        row: file of the result, next to which there may be a link to the export.
        checkpoint: the folder, if given explicitly.
        cache_dir: of the stages on this machine.
    Raises:
        InvalidSetting: it is not available.
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
    # a relative link is dangling after the run's folder was moved
    folder = next((place for place in places if place is not None and place.is_dir()), None)
    if folder is None:
        allowed = (
            "is not there any more: name the exported network with --checkpoint, or the cache that has it with --cache-dir "
            f"(no path of a record is followed); {program_command('run')} makes it again"
        )
        raise InvalidSetting("checkpoint", checkpoint or identity.checkpoint, allowed)
    try:
        with damage_as_value_error():
            return read_export(folder)
    except InvalidSetting:
        raise
    except ValueError as error:
        raise Edited(str(folder), f"cannot be read: {error}") from error


def check_export(result: Result, export: Export) -> None:
    """Check that all stored forms of an exported network are those that the result was measured with.

    Raises:
        Edited: a file was changed, digests of weights or masks differ, the manifest disagrees, a pruned weight is not zero,
            or a layer's compressed form differs from its weight.
    """
    try:
        with damage_as_value_error():
            weights, masks, _ = export.state_dict(), export.masks, export.blocks
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
    """Check what the cache wrote next to the export: checksums of its files, and the key that its name is the digest of."""
    try:
        record = read_stage_record(folder)
        damage = find_damage(folder, record.get("files", {}))
        name = digest(record["determined_by"])
    except (OSError, ValueError, TypeError, AttributeError, KeyError) as error:
        raise Edited(RECORD, f"cannot be read: {error}") from error
    if damage is not None:
        raise Edited(str(folder), f"is not what was stored: {damage}")
    if result.identity.checkpoint != f"export/{name}":
        raise Edited(RECORD, f"was edited: it is of export/{name}, where {result.identity.checkpoint} was measured")


def _check_manifest(result: Result, export: Export) -> None:
    """Check manifest.json against the record and against the masks, whose digest was checked before."""
    manifest, recorded = export.manifest, result.choice.pattern_parameters
    if result.identity.schema_version == SCHEMA_VERSION:
        _require_manifest("format_version", manifest.format_version, FORMAT_VERSION)
    _require_manifest("sparsity", manifest.sparsity, result.sparsity.sparsity_target)
    for key, value in manifest.pattern_parameters.items():
        if key in recorded:
            _require_manifest(f"pattern_parameters.{key}", _as_recorded(value), recorded[key])
    whole = {name: why for name, why in result.sparsity.dense_layers.items() if why == KEEPS_ALL}
    expected = {name: why for name, why in result.sparsity.dense_layers.items() if name not in whole}
    for layer in {**manifest.dense_layers, **expected}:
        stated = manifest.dense_layers.get(layer)
        if layer not in whole or stated is not None:
            _require_manifest(f"dense_layers.{layer}", stated, result.sparsity.dense_layers.get(layer))
    for layer, record in manifest.layers.items():
        mask = export.masks[layer]
        nnz = int(mask.sum())
        for name, value in (("shape", tuple(mask.shape)), ("nnz", nnz), ("density", nnz / mask.numel())):
            _require_manifest(f"layers.{layer}.{name}", getattr(record, name), value)


def _check_layer(export: Export, layer: str, weights: dict[str, Tensor]) -> None:
    """Check that a pruned layer's weight is zero where its mask prunes, and equals its compressed form. After whole blocks were
    removed: check that the remaining layers are those whose masks keep every weight.
    """
    spec, mask = export.spec, export.masks[layer]
    left = spec.name_left(layer)
    if bool(mask.any() if left is None else not mask.all() and spec.blocks is not None):
        raise Edited(BLOCKS, f"was edited: it does not say of {layer} what its mask does")
    if left is None:
        return
    if f"{left}.weight" not in weights:
        raise Edited(f"weights of {layer}", "are missing")
    weight = stored_matrix(export.manifest.layers[layer], weights[f"{left}.weight"])
    if weight.shape != mask.shape or bool(weight.masked_fill(mask, 0.0).any()):
        raise Edited(f"weights of {layer}", "are not zero where its mask prunes them")
    if spec.blocks is not None:  # there is no compressed form
        return
    try:
        with damage_as_value_error():
            stored = export.format(layer)
            same = tuple(stored.shape) == tuple(weight.shape) and torch.equal(
                stored.to_dense().to(weight.dtype), weight
            )
    except ValueError:
        same = False
    if not same:
        raise Edited(f"compressed weights of {layer}", "are not its weights: the kernels would compute something else")


def check_built(experiment: Experiment, export: Export, trust: Sequence[str]) -> MaskSpec:
    """Check an export's pattern against the one built from the result's configuration: name, class, settings, storage of each
    layer, and each layer's sparsity, permutation and pattern, which its mask must obey.

    Returns:
        the mask spec of the export.
    Raises:
        Edited: they differ, or a file cannot be read.
    """
    manifest, pattern = export.manifest, experiment.pattern
    built = json.loads(json.dumps(to_record(pattern)))
    if manifest.pattern is not None:
        _require_manifest("pattern", manifest.pattern, pattern.name)
    if manifest.pattern_class is not None:
        _require_manifest("pattern_class", manifest.pattern_class, built[CLASS])
    _require_manifest(
        "pattern_parameters", manifest.pattern_parameters, {key: built[key] for key in built if key != CLASS}
    )
    try:
        with damage_as_value_error():
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
        _require_manifest(f"layers.{layer}.family", record.family, family)
        _require_manifest(f"layers.{layer}.parameters", record.parameters, json.loads(json.dumps(parameters)))
        named = None if layer not in (spec.patterns or {}) else label(obeyed)
        _require_manifest(f"layers.{layer}.pattern", record.pattern, named)
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
    """Check that sparsities are given for all layers or none, and permutations and patterns only for existing ones."""
    known = {*manifest.layers, *manifest.dense_layers}
    named = {SPARSITIES: spec.sparsities or {}, PERMUTATIONS: spec.permutations, PATTERNS: spec.patterns or {}}
    for file, layers in named.items():
        if more := sorted(layers.keys() - known):
            raise Edited(file, f"was edited: it names {shortened(more[0])}, which is no layer of {MANIFEST}")
    if spec.sparsities is not None and (gone := sorted(manifest.layers.keys() - spec.sparsities.keys())):
        raise Edited(SPARSITIES, f"was edited: it has no sparsity for {gone[0]}")


def _as_recorded(value: Any) -> Any:
    """Reduce a path to its last component, as in records, which name no machine."""
    return Path(value).name if isinstance(value, str) else value


def _require_manifest(key: str, stated: Any, expected: Any) -> None:
    if stated != expected:
        said = f"its {shortened(key)} is {shortened(repr(stated))}, where {shortened(repr(expected))} was measured"
        raise Edited(MANIFEST, f"was edited: {said}")
