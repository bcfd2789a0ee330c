"""Records of finished runs: check that a run's files agree with each other, and pack them small."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from sparsefront.artifacts.bounded_files import (
    MOST_YAML_BYTES,
    Unreadable,
    parse_json_bounded,
    read_bytes_bounded,
    read_json_bounded,
    read_text_bounded,
)
from sparsefront.artifacts.content_digest import file_digest
from sparsefront.artifacts.durable import whole_file
from sparsefront.errors import Edited, InvalidSetting
from sparsefront.options import shorten
from sparsefront.results.columns import find_collapsed
from sparsefront.results.field_types import differences
from sparsefront.results.packed import (
    MEMBERS,
    NAME,
    OUTCOMES,
    OVERRIDES,
    RECORD,
    SAMPLES,
    SERVING,
    SUFFIX,
    is_packed,
    pack,
    unpack,
)
from sparsefront.results.record import Result, record_digest
from sparsefront.results.run_folder import read_overrides
from sparsefront.runs import LEFT_OUT, PATHS
from sparsefront.stages.latency import with_timings
from sparsefront.tasks.outcomes import Outcomes, load_outcomes

MOST_LATENCY_BYTES = 64 * 2**10  # of samples.json when packed; a larger one is left out
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
        if name is not None and (path := (file.parent / Path(name).name)).exists() and _digest(path) != stored:
            raise Edited(path.name, "was edited after it was stored: its sha256 is not the one of the record")
    return result


def _digest(path: Path) -> str | None:
    try:
        return file_digest(path) if path.is_file() else None
    except OSError as error:
        raise InvalidSetting("row", path, f"cannot be read ({error.strerror})") from None


def _once_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Reject duplicate keys in a record: a reader sees the first, a program the last."""
    content = dict(pairs)
    if len(content) < len(pairs):
        twice = Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise Edited("record", f"was edited after it was stored: it states {shorten(twice)} twice")
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
    for side, outcomes in (read_outcomes(result, row) or {}).items():
        recomputed = {"evaluated_samples": len(outcomes), "metric_name": outcomes.metric}
        allowed = SUMMED_EQUAL if result.choice.dataset == "squad" else METRIC_EQUAL
        recomputed[side] = outcomes.metric_over(np.arange(len(outcomes)))
        _require(vars(result.quality), recomputed, result.quality.outcomes_file or "outcomes.npz", abs_tol=allowed)
    sparsity = result.sparsity
    if sparsity.collapsed_layers is not None:
        _require(vars(sparsity), {"collapsed_layers": find_collapsed(result)}, "sparsity_per_layer")


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
            key, discrepancy = ".".join(map(str, path)), f"{shorten(one)}, where {source} gives {shorten(value)}"
            raise Edited("record", f"was edited: it states {key}={discrepancy}")


def read_outcomes(result: Result, row: Path) -> dict[str, Outcomes] | None:
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
    unknown = [side for side in outcomes if not hasattr(result.quality, side)]
    if unknown:
        raise Edited(
            file.name, f"was edited: it holds outcomes of {shorten(unknown[0])}, which is no network of a result"
        )
    return outcomes


def find_result(cache_dir: Path, result: Result) -> Result | None:
    """The result that a record's run left in a cache: it tells what cannot be repeated, such as seconds; None if it is gone."""
    stored = []
    for file in (cache_dir / "result").glob(f"*/{RECORD}"):
        with suppress(ValueError):
            text = read_text_bounded(file)
            if all(f'"{value}"' in text for value in (result.identity.run_id, result.identity.time)):
                stored.append(Result.from_json(text))
    # a measurement may have two results, with a control and without
    return next((one for one in stored if one.choice.control == result.choice.control), None)


def write_record(place: Path, folder: Path) -> Path:
    """Pack one finished run.

    Args:
        place: the run's folder.
        folder: the study's records; created if missing.
    Returns:
        the record's file.
    Raises:
        ValueError: names a file of the run that is missing, was edited, or is too large for a record.
    """
    members = unpack(place) if is_packed(place) else members_of(place)
    run = Result.from_json(members[RECORD].decode()).identity.run_id
    if not NAME.fullmatch(run):
        raise InvalidSetting("run_id", run, f"names no file; {place} has it")
    file = folder / f"{run}{SUFFIX}"
    if not (file.exists() and unpack(file) == members):  # zlib versions compress equal content differently
        folder.mkdir(parents=True, exist_ok=True)
        with whole_file(file) as new:
            new.write_bytes(pack(members))
    return file


def members_of(folder: Path) -> dict[str, bytes]:
    """Files of a run that its record holds: name -> content. Raises ValueError as `write_record` does."""
    result = read_record(folder / RECORD)
    check_numbers(result, folder / RECORD)
    members = {}
    for name in (RECORD, OUTCOMES, SAMPLES, SERVING):
        try:
            members[name] = read_bytes_bounded(folder / name, max_bytes=MEMBERS[name])
        except Unreadable as error:
            if name in (RECORD, OUTCOMES):
                raise ValueError(f"{folder / name}: {error}") from None
    if SAMPLES in members and len(pack({SAMPLES: members[SAMPLES]})) > MOST_LATENCY_BYTES:
        del members[SAMPLES]
    overrides = read_overrides(folder)
    if overrides is None:
        raise ValueError(f"{folder / OVERRIDES}: is missing, and nothing else tells how to make the network again")
    text = yaml.safe_dump(list(without_machine(overrides)), allow_unicode=True, width=math.inf)
    members[OVERRIDES] = text.encode()
    if len(members[OVERRIDES]) > MOST_YAML_BYTES:
        raise ValueError(f"{folder / OVERRIDES}: is larger than the {MOST_YAML_BYTES} bytes that are read")
    return members


def without_machine(overrides: Iterable[str]) -> Iterator[str]:
    """Overrides without output and logging settings, and with only the last part of paths, as in the record itself."""
    for text in overrides:
        key, _, value = text.partition("=")
        plain = key.lstrip("+~")
        if plain.replace("/", ".").partition(".")[0] in LEFT_OUT:
            continue
        yield f"{key}={Path(value.strip(chr(34) + chr(39))).name}" if plain in PATHS else text
