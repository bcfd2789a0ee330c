"""Packed records: a run as one small file, with its record and related files, for repositories and for sharing.

It is a zip file `RUN_ID.record.zip` with at most four members, named as in a run's folder, so that unzipping gives such a
folder. Equal members give equal bytes. Everything that reads a run's folder also reads a packed record through `read_in`.
"""

import io
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from zipfile import ZIP_DEFLATED, ZIP_STORED, ZipFile, ZipInfo

from sparsefront.artifacts.bounded_files import MOST_YAML_BYTES, NO_ARCHIVE, Unreadable, decode_text, read_bytes_bounded
from sparsefront.errors import InvalidSetting, first_line, printable

SUFFIX = ".record.zip"
RECORD, OUTCOMES, SAMPLES, OVERRIDES = "row.json", "outcomes.npz", "samples.json", ".hydra/overrides.yaml"
SERVING = "serving.json"  # of measure.mode=serve
# Member -> maximum size when unpacked; a result has 20 to 200 KB.
MEMBERS = {RECORD: 16 * 2**20, OUTCOMES: 64 * 2**20, SAMPLES: 16 * 2**20, OVERRIDES: MOST_YAML_BYTES, SERVING: 2**20}
COMPRESSED_BEFORE = (OUTCOMES,)
MOST_PACKED_BYTES = 64 * 2**20
NAME = re.compile(r"[0-9A-Za-z_-]{1,64}")  # of a run
_MADE = (1980, 1, 1, 0, 0, 0)  # zip's earliest time stamp: bytes do not depend on the time of packing
# The end record of a zip file without comment, as `pack` writes it, with the size of the central directory before it.
_END_BYTES, _END, _END_64, _LIST_SIZE = 22, b"PK\x05\x06", b"PK\x06\x07", slice(12, 16)
_MOST_LIST_BYTES = 4096


def is_packed(place: Path) -> bool:
    """Whether a path has the name of a packed record and is not a folder."""
    return place.name.endswith(SUFFIX) and not place.is_dir()


def pack(members: Mapping[str, bytes]) -> bytes:
    """Build a packed record.

    Args:
        members: names in `MEMBERS` -> content, including row.json.
    """
    packed = io.BytesIO()
    with ZipFile(packed, "w") as archive:
        for name in MEMBERS:
            if name in members:
                info = ZipInfo(name, _MADE)
                info.compress_type = ZIP_STORED if name in COMPRESSED_BEFORE else ZIP_DEFLATED
                info.create_system, info.external_attr = 3, 0o644 << 16  # Unix, regardless of the platform
                archive.writestr(info, members[name], compresslevel=9)
    return packed.getvalue()


def unpack(file: Path) -> dict[str, bytes]:
    """Member -> content of a packed record.

    Raises:
        Unreadable: the file is missing, of another kind, damaged, or has other members than a packed record.
    """
    with _open(file) as (archive, infos):
        return {name: _content(archive, info) for name, info in infos.items()}


@contextmanager
def in_a_folder(row: Path) -> Iterator[Path]:
    """Context with the row.json of a packed record, unpacked temporarily; other files are used directly.

    Raises:
        InvalidSetting: as `unpack`; an error about the temporary file names the record.
    """
    if not is_packed(row):
        yield row
        return
    try:
        members = unpack(row)
    except Unreadable as error:
        raise InvalidSetting("row", row, str(error)) from None
    with TemporaryDirectory() as folder:
        for name, content in members.items():
            file = Path(folder) / name
            file.parent.mkdir(exist_ok=True)
            file.write_bytes(content)
        try:
            yield Path(folder) / RECORD
        except InvalidSetting as error:
            if type(error) is InvalidSetting and error.value == Path(folder) / RECORD:
                raise InvalidSetting(error.key, row, error.allowed) from None
            raise


def read_in(place: Path, name: str, *, max_bytes: int) -> bytes:
    """Read a file of a run.

    Args:
        place: the run's folder, or its packed record.
        name: in `MEMBERS`.
    Raises:
        Unreadable: it is missing, too large, or cannot be read.
    """
    if not is_packed(place):
        return read_bytes_bounded(place / name, max_bytes=max_bytes)
    with _open(place) as (archive, infos):
        if name not in infos:
            raise Unreadable(f"holds no {name}")
        if infos[name].file_size > max_bytes:
            raise Unreadable(f"{name} has {infos[name].file_size} bytes, more than the {max_bytes} that are read")
        return _content(archive, infos[name])


def read_text_in(place: Path, name: str, *, max_bytes: int) -> str:
    """Read a file of a run as UTF-8 text. Arguments and errors as in `read_in`."""
    return decode_text(read_in(place, name, max_bytes=max_bytes))


def is_in(place: Path, name: str) -> bool:
    """Whether a run has a file (or a dangling link); False for an unreadable packed record."""
    if not is_packed(place):
        return os.path.lexists(place / name)
    try:
        with _open(place) as (_, infos):
            return name in infos
    except Unreadable:
        return False


@contextmanager
def _open(file: Path) -> Iterator[tuple[ZipFile, dict[str, ZipInfo]]]:
    """Open the archive after checking the number and sizes of its members."""
    content = read_bytes_bounded(file, max_bytes=MOST_PACKED_BYTES)
    end = content[-_END_BYTES:]
    listed = int.from_bytes(end[_LIST_SIZE], "little")
    # a directory with a million members, or one announced by a zip64 end record, would take a gigabyte
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
    """Read a member and verify its checksum; never decompresses more than its declared size."""
    with archive.open(info) as stream:
        content = stream.read(info.file_size + 1)
    if len(content) != info.file_size:
        raise Unreadable(f"{info.filename} is cut off")
    return content
