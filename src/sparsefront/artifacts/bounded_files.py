"""Read untrusted files within bounds: a stranger, an editor or a crash may have left anything under a known name.

Every reader takes a path and raises only `Unreadable`, a ValueError with a one-line reason without the path. The limits are far
above real files: a result has 20 KB and 6 levels, a run's configuration 10 KB and no alias.
"""

import codecs
import json
import os
import stat
import struct
import zlib
from collections.abc import Callable
from math import isfinite
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import yaml

MOST_TEXT_BYTES = 64 * 2**20
MOST_TABLE_BYTES = 4 * 2**30
MOST_YAML_BYTES = 4 * 2**20
MOST_DEPTH = 64  # nesting levels
MOST_YAML_CHARACTERS = 16 * 2**20  # of a YAML file's values, with aliases expanded
MOST_DIGITS = 20  # of an integer: 2**64 has this many

# Raised by zipfile and numpy for damaged or forged archives.
NO_ARCHIVE = (
    BadZipFile,
    EOFError,
    KeyError,
    NotImplementedError,
    OSError,
    TypeError,
    ValueError,
    struct.error,
    zlib.error,
)

TOO_DEEP = f"is nested deeper than {MOST_DEPTH} levels"
Pairs = Callable[[list[tuple[str, Any]]], Any]
_OTHER_ENCODINGS = {codecs.BOM_UTF16_LE: "UTF-16", codecs.BOM_UTF16_BE: "UTF-16"}
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class Unreadable(ValueError):
    """Why a file cannot be used, in one line; the caller names the file."""


def read_bytes_bounded(file: Path, *, max_bytes: int = MOST_TEXT_BYTES) -> bytes:
    """Read a regular file.

    Raises:
        Unreadable: it is missing, cannot be opened, is not a regular file, or is too large.
    """
    try:
        with open(file, "rb", opener=_open_at_once) as stream:
            status = os.fstat(stream.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise Unreadable("is no regular file")
            if status.st_size > max_bytes:
                raise Unreadable(f"has {status.st_size} bytes, more than the {max_bytes} that are read")
            return stream.read(status.st_size)
    except IsADirectoryError:
        raise Unreadable("is a folder, not a file") from None
    except OSError as error:
        raise Unreadable(error.strerror or str(error)) from None
    except ValueError as error:
        if isinstance(error, Unreadable):
            raise
        raise Unreadable(f"has a name that no file can have ({error})") from None  # contains a null character


def _open_at_once(path: str, flags: int) -> int:
    """Open without blocking: opening a pipe would wait for its writer."""
    return os.open(path, flags | os.O_NONBLOCK)


def read_text_bounded(file: Path, *, max_bytes: int = MOST_TEXT_BYTES) -> str:
    """Read a UTF-8 file, without byte order mark; line ends are not changed.

    Raises:
        Unreadable: as in `read_bytes_bounded`, or not UTF-8.
    """
    return decode_text(read_bytes_bounded(file, max_bytes=max_bytes))


def decode_text(content: bytes) -> str:
    """Decode UTF-8, without byte order mark. Raises Unreadable if invalid."""
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        other = _OTHER_ENCODINGS.get(content[:2])
        if other is not None:
            raise Unreadable(f"is {other} text; save it as UTF-8") from None
        raise Unreadable(f"is not UTF-8 text (byte 0x{content[error.start]:02x} at position {error.start})") from None


SEPARATORS = ",;\t"


def read_table_text(file: Path) -> str:
    """Read a CSV file, also as saved by a spreadsheet: with byte order mark, or as UTF-16. Invalid UTF-8 bytes become
    surrogates, so that a line torn inside a character can be repaired.

    Raises:
        Unreadable: as in `read_bytes_bounded`, or truncated UTF-16.
    """
    content = read_bytes_bounded(file, max_bytes=MOST_TABLE_BYTES)
    if content[:2] not in _OTHER_ENCODINGS:
        return content.removeprefix(codecs.BOM_UTF8).decode("utf-8", errors="surrogateescape")
    try:
        return content.decode("utf-16")
    except UnicodeDecodeError:
        raise Unreadable("is UTF-16 text that is cut off; save it as CSV in UTF-8") from None


def separator_of(text: str) -> str:
    """The cell separator in a table's first line; column names contain no candidates for it."""
    first = text.partition("\n")[0]
    return max(SEPARATORS, key=first.count)


def read_json_bounded(file: Path, *, object_pairs_hook: Pairs | None = None, finite: bool = True) -> Any:
    """Read a JSON file; raises Unreadable as `read_text_bounded` and `parse_json_bounded`."""
    return parse_json_bounded(read_text_bounded(file), object_pairs_hook=object_pairs_hook, finite=finite)


def parse_json_bounded(text: str, *, object_pairs_hook: Pairs | None = None, finite: bool = True) -> Any:
    """Parse JSON text: numbers are finite, and strings can be written again.

    Args:
        object_pairs_hook: as in `json.loads`.
        finite: False accepts NaN and infinity, as written by `json.dumps`.
    Raises:
        Unreadable: not JSON, nested too deeply, NaN or infinity, an integer with too many digits, or a lone surrogate.
    """
    try:
        content = json.loads(
            text,
            parse_constant=_no_number if finite else None,
            parse_float=_finite if finite else None,
            parse_int=_whole_number,
            object_pairs_hook=object_pairs_hook,
        )
        level = [content] if isinstance(content, dict | list) else []
        for _ in range(MOST_DEPTH):
            parts = (part for one in level for part in (one.values() if isinstance(one, dict) else one))
            level = [part for part in parts if isinstance(part, dict | list)]
        if level:
            raise RecursionError
        if "\\ud" in text.lower():  # surrogates of undecodable bytes in file names (PEP 383) can be written
            json.dumps(content, ensure_ascii=False).encode(errors="surrogateescape")
    except json.JSONDecodeError as error:
        raise Unreadable(f"not JSON ({error})") from None
    except RecursionError:
        raise Unreadable(TOO_DEEP) from None
    except UnicodeEncodeError:
        raise Unreadable("not JSON (a string holds half a character)") from None
    return content


def _no_number(name: str) -> Any:
    raise Unreadable(f"not JSON ({name} is no number)")


def _finite(digits: str) -> float:
    number = float(digits)
    if not isfinite(number):
        raise Unreadable(f"holds the number {digits[:MOST_DIGITS]}, which is too large")
    return number


def _whole_number(digits: str) -> int:
    if len(digits.lstrip("-")) > MOST_DIGITS:
        raise Unreadable(f"holds a whole number of {len(digits.lstrip('-'))} digits, more than {MOST_DIGITS}")
    return int(digits)


def load_yaml_bounded(file: Path) -> Any:
    """Read a YAML file as plain containers and scalars; None if it is empty. Raises Unreadable as `parse_yaml_bounded`."""
    return parse_yaml_bounded(read_text_bounded(file, max_bytes=MOST_YAML_BYTES))


def parse_yaml_bounded(text: str) -> Any:
    """Parse YAML text.

    Raises:
        Unreadable: not YAML, nested too deeply, aliases that expand to too much, or an invalid value, as a date in month 13.
    """
    try:
        _require_yaml_bounds(text)
        content = yaml.load(text, Loader=_LOADER)
        str(content)  # fails for an integer with too many digits
        return content
    except Unreadable:
        raise
    except RecursionError:
        raise Unreadable(TOO_DEEP) from None
    except (yaml.YAMLError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
        where = "" if mark is None else f"line {mark.line + 1}, column {mark.column + 1}: "
        raise Unreadable(f"not YAML ({where}{problem or ' '.join(str(error).split())})") from None


def _require_yaml_bounds(text: str) -> None:
    """Measure event by event, without building anything: deep YAML ends the process, and aliases multiply it."""
    sizes: dict[str, int] = {}  # anchor -> characters of what it stands for
    opened: list[tuple[str | None, int]] = [(None, 0)]
    for event in yaml.parse(text, Loader=_LOADER):
        if isinstance(event, yaml.CollectionStartEvent):
            opened.append((event.anchor, 1))
            anchor, size = None, 0
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, size = opened.pop()
        elif isinstance(event, yaml.ScalarEvent):
            anchor, size = event.anchor, 1 + len(event.value)
        elif isinstance(event, yaml.AliasEvent):
            if any(anchor == event.anchor for anchor, _ in opened):
                raise Unreadable(f"holds an alias, *{event.anchor}, inside of what it stands for")
            anchor, size = None, sizes.get(event.anchor, 1)  # the parser rejects unknown anchors
        else:
            continue
        if anchor is not None:
            sizes[anchor] = size
        opened[-1] = opened[-1][0], opened[-1][1] + size
        if len(opened) - 1 > MOST_DEPTH:
            raise Unreadable(TOO_DEEP)
        if opened[-1][1] > MOST_YAML_CHARACTERS:
            raise Unreadable(f"stands for more than {MOST_YAML_CHARACTERS} characters")
