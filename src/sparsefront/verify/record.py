"""What a stored result says of itself and of the files beside it, against what is there now. Nothing is measured."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from sparsefront.artifacts.bounded_files import (
    load_yaml_bounded,
    parse_json_bounded,
    read_json_bounded,
    read_text_bounded,
)
from sparsefront.artifacts.content_digest import file_digest
from sparsefront.config.schema import GROUPS
from sparsefront.errors import Edited, InvalidSetting
from sparsefront.measure.end_to_end import speedup_of
from sparsefront.measure.timers import summarise
from sparsefront.options import shortened
from sparsefront.pruning.collapse import collapsed_layers
from sparsefront.results.record import Result, record_digest
from sparsefront.results.run_folder import HYDRA_FILE, recorded_overrides
from sparsefront.runs import LEFT_OUT, PATHS
from sparsefront.stages.bench import OUTCOMES
from sparsefront.stages.measure import SAMPLES
from sparsefront.tasks.outcomes import Outcomes, load_outcomes

CONFIG_FILE = Path(".hydra") / "config.yaml"
COVERED = ("row.json", "samples.json", "outcomes.npz", "checkpoint", "checkpoint.txt", ".hydra")
NETWORKS = ("dense", "masked", "sparse")
NAMED_AT_MOST = 8
EQUAL = 1e-9  # relative: what reading and writing a number may change
METRIC_EQUAL = 1e-6  # a metric is computed in fp32 and stored as Python's float


def read_record(file: Path) -> Result:
    """The result of a `row.json`, whose digest holds, and those of the files beside it that are there.

    Raises:
        InvalidSetting: no result, or one of an earlier version, which holds no digest.
        Edited: the record, or one of its files, is not what was stored.
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
    """A file that a record names lies beside it, whatever folder the name has."""
    return file.parent / Path(name).name


def _digest(path: Path) -> str | None:
    return file_digest(path) if path.is_file() else None


def _once_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of a record. Of two entries of one name a reader sees the first and a program the last."""
    content = dict(pairs)
    if len(content) < len(pairs):
        twice = Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise Edited("record", f"was edited after it was stored: it states {shortened(twice)} twice")
    return content


def check_numbers(result: Result, row: Path) -> None:
    """Check what follows from other numbers of the record: latencies and the speedup from samples.json, metrics from
    outcomes.npz, collapsed layers from the sparsities. Who forges one number and its digest forgets the others.

    Raises:
        Edited: one does not follow; names it.
    """
    if (name := result.speed.samples_file) is not None and _beside(row, name).exists():
        _check_samples(result, _beside(row, name))
    for side, outcomes in (stored_outcomes(result, row) or {}).items():
        _check_outcomes(result, side, outcomes)
    _check_places(result)
    sparsity = result.sparsity
    if sparsity.collapsed_layers is not None:
        found = collapsed_layers(sparsity.sparsity_per_layer, sparsity.sparsity_target)
        _require("collapsed_layers", sparsity.collapsed_layers, found, "sparsity_per_layer")


def _check_places(result: Result) -> None:
    """The facts of the device are those of a GPU or of a processor; what was timed is among what was tried; the files beside the
    record have their names.
    """
    identity, speed, device = result.identity, result.speed, result.speed.latency_device
    if device not in (None, "cpu", "cuda"):
        raise Edited("record", f"was edited: latency_device is {shortened(device)}, which is neither cpu nor cuda")
    others = {"cpu": ("gpu", "driver", "cuda", "gpu_clock_mhz"), "cuda": ("processor", "threads")}
    for field in others.get(device or "", ()):
        if getattr(identity, field) is not None:
            raise Edited("record", f"was edited: {field} is stated of a latency on {device}")
    for side in ("dense", "sparse"):
        mode, variant = getattr(speed, f"execution_mode_{side}"), getattr(speed, f"{side}_variant")
        if variant is None:
            continue  # not timed, or in an earlier result
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
    except Edited:
        raise
    except (ValueError, TypeError, AttributeError, IndexError, RuntimeError) as error:
        raise Edited(file.name, f"was edited: it holds no samples of latencies ({error})") from error
    speed = result.speed
    for side in ("dense", "sparse") if timed else ():
        if (repeats := timed.get(side)) is not None:
            _require("repeats", speed.repeats, len(repeats), file.name)
            _require("samples_per_repeat", {speed.samples_per_repeat}, set(map(len, repeats)), file.name)


def _timed_sizes(
    result: Result, timed: Mapping[str, list[list[float]]]
) -> Iterator[tuple[Mapping[str, Any], dict[str, list[list[float]]], int | None]]:
    """Of the result's own size and of each on its curve: what is stated, samples by network, and the batch size."""
    own = {side: repeats for side, repeats in timed.items() if " " not in side}
    yield vars(result.speed), own, result.speed.batch_size
    for point in result.speed.curve:
        length = point.get("sequence_length")
        size = f"{point.get('batch_size')}x{length}" if length else f"{point.get('batch_size')}"
        there = {side.partition(" ")[0]: repeats for side, repeats in timed.items() if side.endswith(f" {size}")}
        yield point, there, None


def _check_timing(
    stated: Mapping[str, Any], timed: dict[str, list[list[float]]], batch: int | None, source: str
) -> None:
    for side in ("dense", "sparse"):
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
    if {"dense", "sparse"} <= timed.keys():
        for key, value in speedup_of(timed["dense"], timed["sparse"]).to_json().items():
            _require_close(key, stated.get(key), value, source)


def stored_outcomes(result: Result, row: Path) -> dict[str, Outcomes] | None:
    """What each sample added to the metric, of each network; None where the file is not here.

    Raises:
        Edited: it cannot be read.
    """
    name = result.quality.outcomes_file
    if name is None or not _beside(row, name).exists():
        return None
    try:
        return load_outcomes(_beside(row, name))
    except Exception as error:  # of NumPy and its zip files, in whatever way the bytes lead them to
        raise Edited(name, f"cannot be read: {error}") from error


def _check_outcomes(result: Result, side: str, outcomes: Outcomes) -> None:
    source, quality = result.quality.outcomes_file or "outcomes.npz", result.quality
    if side not in NETWORKS:
        raise Edited(source, f"was edited: it holds outcomes of {shortened(side)}, which is no network of a result")
    _require("evaluated_samples", quality.evaluated_samples, len(outcomes), source)
    _require("metric_name", quality.metric_name, outcomes.metric, source)
    found, stated = outcomes.metric_over(np.arange(len(outcomes))), getattr(quality, side)
    if stated is None or not math.isclose(stated, found, abs_tol=METRIC_EQUAL):
        raise Edited("record", f"was edited: it states {side}={stated}, where {source} gives {found:.6f}")


def configuration_difference(composed: Mapping[str, Any], row: Path, own: Sequence[str]) -> str | None:
    """What of config.yaml beside a record is not what the run's overrides compose in this version of the program.

    Args:
        composed: the configuration as plain containers, interpolations as written.
        own: overrides that the run did not have.
    Returns:
        in words, the first key that differs; None where none does, or the file is not here.
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
    """Check what hydra.yaml beside a record says of overrides and chosen options; all else in it is Hydra's own.

    Args:
        choices: group -> name of its option, as composed.
        own: as of `configuration_difference`.
    Raises:
        Edited: it says something else, or cannot be read.
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
    """Dotted key -> value, of nested mappings; lists are values."""
    for key, value in content.items() if isinstance(content, dict) else ():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _yaml_beside(row: Path, name: Path) -> Any:
    """None where the file is not here."""
    file = row.parent / name
    if not file.exists():
        return None
    try:
        return load_yaml_bounded(file)
    except ValueError as error:
        raise Edited(str(name), f"cannot be read: {error}") from error


def uncovered(folder: Path) -> list[str]:
    """Files of a run's folder that state nothing of their own and are not looked at, such as pictures; the first few."""
    names = (path.name for path in sorted(folder.iterdir()) if path.name not in COVERED)
    return [shortened(name, 60) for name in islice(names, NAMED_AT_MOST)]


def _require(key: str, stated: Any, found: Any, source: str) -> None:
    if stated != found:
        given = f"{shortened(stated)}, where {source} gives {shortened(found)}"
        raise Edited("record", f"was edited: it states {key}={given}")


def _require_close(key: str, stated: Any, found: float, source: str) -> None:
    if not isinstance(stated, int | float) or not math.isclose(stated, found, rel_tol=EQUAL):
        raise Edited("record", f"was edited: it states {key}={shortened(stated)}, where {source} gives {found:.6g}")
