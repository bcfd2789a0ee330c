"""Pack finished runs small, after checking their files: the write side of `results.packed`."""

import math
from collections.abc import Iterable, Iterator
from pathlib import Path

import yaml

from sparsefront.artifacts.bounded_files import MOST_YAML_BYTES, Unreadable, read_bytes_bounded
from sparsefront.artifacts.durable import whole_file
from sparsefront.errors import InvalidSetting
from sparsefront.results.packed import (
    MEMBERS,
    NAME,
    OUTCOMES,
    OVERRIDES,
    RECORD,
    SAMPLES,
    SUFFIX,
    is_packed,
    pack,
    unpacked,
)
from sparsefront.results.record import Result
from sparsefront.results.run_folder import recorded_overrides
from sparsefront.runs import LEFT_OUT, PATHS
from sparsefront.verify.stored import check_numbers, read_record

MOST_LATENCY_BYTES = 64 * 2**10  # of samples.json when packed; a larger one is left out


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
    members = unpacked(place) if is_packed(place) else members_of(place)
    run = Result.from_json(members[RECORD].decode()).identity.run_id
    if not NAME.fullmatch(run):
        raise InvalidSetting("run_id", run, f"names no file; {place} has it")
    file = folder / f"{run}{SUFFIX}"
    if not (file.exists() and unpacked(file) == members):  # zlib versions compress equal content differently
        folder.mkdir(parents=True, exist_ok=True)
        with whole_file(file) as new:
            new.write_bytes(pack(members))
    return file


def members_of(folder: Path) -> dict[str, bytes]:
    """Files of a run that its record holds: name -> content. Raises ValueError as `write_record` does."""
    result = read_record(folder / RECORD)
    check_numbers(result, folder / RECORD)
    members = {}
    for name in (RECORD, OUTCOMES, SAMPLES):
        try:
            members[name] = read_bytes_bounded(folder / name, max_bytes=MEMBERS[name])
        except Unreadable as error:
            if name != SAMPLES:
                raise ValueError(f"{folder / name}: {error}") from None
    if SAMPLES in members and len(pack({SAMPLES: members[SAMPLES]})) > MOST_LATENCY_BYTES:
        del members[SAMPLES]
    overrides = recorded_overrides(folder)
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
