"""A run as one small file: its record with the files that belong to it, as a repository keeps it and a stranger may send it.

It is a zip file `RUN_ID.record.zip` of at most four members under the names that they have in the folder of a run, so that
unpacking one gives such a folder. Equal members give equal bytes. Whatever reads a run's folder reads a packed record through
`read_in`.
"""

import io
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZIP_STORED, ZipFile, ZipInfo

from sparsefront.artifacts.bounded_files import (
    MOST_YAML_BYTES,
    NO_ARCHIVE,
    Unreadable,
    decode_text,
    read_bytes_bounded,
)
from sparsefront.errors import first_line, printable

SUFFIX = ".record.zip"
RECORD, OUTCOMES, SAMPLES, OVERRIDES = "row.json", "outcomes.npz", "samples.json", ".hydra/overrides.yaml"
# Member -> bytes of it that are unpacked at most; a result has 20 to 200 KB.
MEMBERS = {RECORD: 16 * 2**20, OUTCOMES: 64 * 2**20, SAMPLES: 16 * 2**20, OVERRIDES: MOST_YAML_BYTES}
COMPRESSED_BEFORE = (OUTCOMES,)
MOST_PACKED_BYTES = 64 * 2**20
NAME = re.compile(r"[0-9A-Za-z_-]{1,64}")  # of a run
_MADE = (1980, 1, 1, 0, 0, 0)  # the first moment that zip knows: bytes do not depend on when they were packed
# The end of a zip file without a comment, as `pack` writes it: how large the list of members before it is.
_END_BYTES, _END, _END_64, _LIST_SIZE = 22, b"PK\x05\x06", b"PK\x06\x07", slice(12, 16)
_MOST_LIST_BYTES = 4096


def is_packed(place: Path) -> bool:
    """Whether a path is named as a packed record, and is no folder."""
    return place.name.endswith(SUFFIX) and not place.is_dir()


def pack(members: Mapping[str, bytes]) -> bytes:
    """The bytes of a packed record.

    Args:
        members: names of `MEMBERS` -> content; row.json among them.
    """
    packed = io.BytesIO()
    with ZipFile(packed, "w") as archive:
        for name in MEMBERS:
            if name in members:
                info = ZipInfo(name, _MADE)
                info.compress_type = ZIP_STORED if name in COMPRESSED_BEFORE else ZIP_DEFLATED
                info.create_system, info.external_attr = 3, 0o644 << 16  # of Unix, wherever it is packed
                archive.writestr(info, members[name], compresslevel=9)
    return packed.getvalue()


def unpacked(file: Path) -> dict[str, bytes]:
    """Member -> content of a packed record.

    Raises:
        Unreadable: no such file, another one, a damaged one, or one with more in it than a packed record has.
    """
    with _opened(file) as (archive, infos):
        return {name: _content(archive, info) for name, info in infos.items()}


def read_in(place: Path, name: str, *, max_bytes: int) -> bytes:
    """A file of a run.

    Args:
        place: the run's folder, or its packed record.
        name: of `MEMBERS`.
    Raises:
        Unreadable: it is missing, larger, or cannot be read.
    """
    if not is_packed(place):
        return read_bytes_bounded(place / name, max_bytes=max_bytes)
    with _opened(place) as (archive, infos):
        if name not in infos:
            raise Unreadable(f"holds no {name}")
        if infos[name].file_size > max_bytes:
            raise Unreadable(f"{name} has {infos[name].file_size} bytes, more than the {max_bytes} that are read")
        return _content(archive, infos[name])


def read_text_in(place: Path, name: str, *, max_bytes: int) -> str:
    """The UTF-8 text of a file of a run. Arguments and errors as `read_in`."""
    return decode_text(read_in(place, name, max_bytes=max_bytes))


def is_in(place: Path, name: str) -> bool:
    """Whether a run has a file, be it a link that leads nowhere; a packed record that cannot be read has none."""
    if not is_packed(place):
        return os.path.lexists(place / name)
    try:
        with _opened(place) as (_, infos):
            return name in infos
    except Unreadable:
        return False


@contextmanager
def _opened(file: Path) -> Iterator[tuple[ZipFile, dict[str, ZipInfo]]]:
    """The archive with its members; how many and how large they are is known before anything is unpacked."""
    content = read_bytes_bounded(file, max_bytes=MOST_PACKED_BYTES)
    end = content[-_END_BYTES:]
    listed = int.from_bytes(end[_LIST_SIZE], "little")
    # a list of a million members would take a gigabyte, and so would one that a 64-bit end announces
    if end[:4] != _END or content[-_END_BYTES - 20 :][:4] == _END_64 or listed > _MOST_LIST_BYTES:
        raise Unreadable("is no packed record, or is cut off")
    try:
        with ZipFile(io.BytesIO(content)) as archive:
            infos = {info.filename: info for info in archive.infolist()}
            if len(infos) < len(archive.infolist()):
                raise Unreadable("is no packed record: it holds two files of one name")
            for name, info in infos.items():
                _require_member(name, info)
            if RECORD not in infos:
                raise Unreadable(f"is no packed record: it holds no {RECORD}")
            yield archive, infos
    except Unreadable:
        raise
    except (*NO_ARCHIVE, RuntimeError) as error:
        raise Unreadable(f"is no packed record, or is damaged ({first_line(error)})") from None


def _require_member(name: str, info: ZipInfo) -> None:
    if name not in MEMBERS:
        raise Unreadable(f"is no packed record: it holds {printable(name)[:80]}; there are {', '.join(MEMBERS)}")
    if info.compress_type not in (ZIP_STORED, ZIP_DEFLATED) or info.flag_bits & 1:
        raise Unreadable(f"{name} is packed in a way that this program does not write")
    if info.file_size > MEMBERS[name]:
        raise Unreadable(f"{name} has {info.file_size} bytes, more than the {MEMBERS[name]} that are read")


def _content(archive: ZipFile, info: ZipInfo) -> bytes:
    """A member, whose checksum holds; no more is unpacked than its size says, whatever is in it."""
    with archive.open(info) as stream:
        content = stream.read(info.file_size + 1)
    if len(content) != info.file_size:
        raise Unreadable(f"{info.filename} is cut off")
    return content
