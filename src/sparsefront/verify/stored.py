"""Read and check a stored result's record, its files and its export, without evaluating anything."""

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
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
from sparsefront.artifacts.content_digest import digest, file_digest, find_damage
from sparsefront.artifacts.store import RECORD
from sparsefront.artifacts.store import read_record as read_stage_record
from sparsefront.config.schema import GROUPS
from sparsefront.errors import Edited, InvalidSetting
from sparsefront.export.checkpoint import Export, damage_as_value_error, read_export
from sparsefront.networks import tensors_digest
from sparsefront.options import program_command, shortened
from sparsefront.results.columns import collapsed_in
from sparsefront.results.field_types import differences
from sparsefront.results.record import Result, record_digest
from sparsefront.results.run_folder import HYDRA_FILE, recorded_overrides
from sparsefront.runs import LEFT_OUT, PATHS, linked_checkpoint
from sparsefront.stages.latency import with_timings
from sparsefront.tasks.outcomes import Outcomes, load_outcomes

CONFIG_FILE = Path(".hydra") / "config.yaml"
COVERED = ("row.json", "samples.json", "outcomes.npz", "checkpoint", "checkpoint.txt", ".hydra")
NAMED_AT_MOST = 8
EQUAL = 1e-9  # relative tolerance for reading and writing numbers
METRIC_EQUAL = 1e-6  # for metrics computed in fp32 and stored as Python floats
SUMMED_EQUAL = 1e-5  # for SQuAD: older versions summed ten thousand questions in fp32, off by 5e-6


def read_record(file: Path) -> Result:
    """Read a `row.json` and verify its digest, and those of existing files next to it.

    Raises:
        InvalidSetting: not a result, or one without digest.
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
        raise InvalidSetting("row", file, "holds no record_sha256: it was taken away")
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
    speed, samples = vars(result.speed), read_samples(result, row)
    try:
        again = {} if samples is None else with_timings(speed, samples)
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:  # not as a measurement writes them
        raise Edited("samples.json", f"was edited: no latencies follow from it ({error})") from error
    _require(speed, again, "samples.json")
    for side, outcomes in (stored_outcomes(result, row) or {}).items():
        found = {"evaluated_samples": len(outcomes), "metric_name": outcomes.metric}
        allowed = SUMMED_EQUAL if result.choice.dataset == "squad" else METRIC_EQUAL
        found[side] = outcomes.metric_over(np.arange(len(outcomes)))
        _require(vars(result.quality), found, result.quality.outcomes_file or "outcomes.npz", abs_tol=allowed)
    sparsity = result.sparsity
    if sparsity.collapsed_layers is not None:
        _require(vars(sparsity), {"collapsed_layers": collapsed_in(result)}, "sparsity_per_layer")


def read_samples(result: Result, row: Path) -> dict[str, list[list[float]]] | None:
    """All latency samples; None if the file is not available.

    Raises:
        Edited: it holds none.
    """
    file = row.parent / Path(result.speed.samples_file or "samples.json").name
    if not file.exists():
        return None
    try:
        samples = {
            side: [list(map(float, repeat)) for repeat in repeats] for side, repeats in read_json_bounded(file).items()
        }
        if not all(repeats and all(repeats) and all(map(all, repeats)) for repeats in samples.values()):
            raise ValueError("an empty repeat")
        return samples
    except (ValueError, TypeError, AttributeError) as error:
        raise Edited(file.name, f"was edited: it holds no samples of latencies ({error})") from error


def _require(stated: Mapping[str, Any], found: Mapping[str, Any], source: str, *, abs_tol: float = 0.0) -> None:
    """Raise Edited for the first value that does not follow from the source."""
    for path, one, value in differences((), {name: stated.get(name) for name in found}, found):
        numbers = isinstance(one, float) and isinstance(value, int | float)
        if not (numbers and math.isclose(one, value, rel_tol=EQUAL, abs_tol=abs_tol)):
            key, told = ".".join(map(str, path)), f"{shortened(one)}, where {source} gives {shortened(value)}"
            raise Edited("record", f"was edited: it states {key}={told}")


def stored_outcomes(result: Result, row: Path) -> dict[str, Outcomes] | None:
    """Per-sample outcomes of each network; None if the file is not available.

    Raises:
        Edited: it cannot be read, or is of networks that no result has.
    """
    file = row.parent / Path(result.quality.outcomes_file or "outcomes.npz").name
    if not file.exists():
        return None
    try:
        outcomes = load_outcomes(file)
    except Exception as error:  # NumPy and zipfile can fail in any way on edited bytes
        raise Edited(file.name, f"cannot be read: {error}") from error
    if unknown := [side for side in outcomes if not hasattr(result.quality, side)]:
        raise Edited(
            file.name, f"was edited: it holds outcomes of {shortened(unknown[0])}, which is no network of a result"
        )
    return outcomes


def check_configuration(
    configuration: Mapping[str, Any], choices: Mapping[str, str], row: Path, own: Sequence[str]
) -> str | None:
    """Compare the copies of the configuration next to a record with what its overrides compose in this version.

    Args:
        configuration: as plain containers, with interpolations unresolved.
        choices: group -> name of its option, as composed.
        own: overrides that the run did not have.
    Returns:
        the first difference of config.yaml, which another version may have; None if there is none.
    Raises:
        Edited: hydra.yaml names other overrides or options, or a file cannot be read.
    """
    replaced = {text.partition("=")[0].lstrip("+~") for text in own} | {*LEFT_OUT, "trainer"}
    hydra = _yaml_beside(row, HYDRA_FILE).get("hydra")
    parts = [hydra.get(name) if isinstance(hydra, dict) else None for name in ("overrides", "runtime")]
    task, chosen = (part.get(key) if isinstance(part, dict) else None for part, key in zip(parts, ("task", "choices")))
    if task not in (None, recorded_overrides(row.parent)):
        raise Edited(str(HYDRA_FILE), "was edited: its overrides.task is not what overrides.yaml holds")
    for group in GROUPS if isinstance(chosen, dict) else ():
        if group not in replaced and chosen.get(group, choices.get(group)) not in (choices.get(group), "default"):
            told = f"it chose {group}={shortened(chosen[group])}, where {choices.get(group)} was run"
            raise Edited(str(HYDRA_FILE), f"was edited: {told}")
    for path, stated, here in differences((), _yaml_beside(row, CONFIG_FILE), configuration):
        key = ".".join(map(str, path))
        if stated is not None and not any(f"{key}.".startswith(f"{name}.") for name in (*replaced, *PATHS)):
            found = f"{here} is composed" if here is not None else "there is no such setting"
            return f"{shortened(key)} is {shortened(stated)} in it, where {found}"
    return None


def _yaml_beside(row: Path, name: Path) -> dict[str, Any]:
    """Load a YAML file next to the row; empty if it is not available."""
    if not (row.parent / name).exists():
        return {}
    try:
        content = load_yaml_bounded(row.parent / name)
    except ValueError as error:
        raise Edited(str(name), f"cannot be read: {error}") from error
    return content if isinstance(content, dict) else {}


def uncovered(folder: Path) -> list[str]:
    """Files of a run's folder that are not checked because they state nothing of their own, such as pictures; the first few."""
    names = (path.name for path in sorted(folder.iterdir()) if path.name not in COVERED)
    return [shortened(name, 60) for name in islice(names, NAMED_AT_MOST)]


CHECKPOINT = re.compile(r"export/([0-9a-f]{16})")


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
    if result.choice.pattern == "dense" and identity.checkpoint is None:
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


def check_files(result: Result, export: Export) -> None:
    """Check that the files of an exported network are those that the result was measured with.

    Raises:
        Edited: digests of weights or masks differ, or the checksums and the name that the cache gave them.
    """
    try:
        with damage_as_value_error():
            digests = {"masks": tensors_digest(export.masks), "weights": tensors_digest(export.state_dict())}
            record = read_stage_record(export.directory)
            damage, name = find_damage(export.directory, record.get("files", {})), digest(record["determined_by"])
    except ValueError as error:
        raise Edited(str(export.directory), f"cannot be read: {error}") from error
    for part, found in digests.items():
        if found != getattr(result.identity, f"{part}_sha256"):
            raise Edited(part, f"are not those that were measured: their sha256 is not the {part}_sha256 of the record")
    if damage is not None:
        raise Edited(str(export.directory), f"is not what was stored: {damage}")
    if result.identity.checkpoint != f"export/{name}":
        raise Edited(RECORD, f"was edited: it is of export/{name}, where {result.identity.checkpoint} was measured")
