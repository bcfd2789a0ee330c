"""What lies below a folder in which other processes work."""

import os
from collections.abc import Callable, Collection, Iterator
from fnmatch import fnmatchcase
from pathlib import Path


def below(folder: Path, pattern: str) -> Iterator[Path]:
    """Files and folders at any depth whose names match, as `folder.rglob(pattern)` gives them. That raises where a folder
    vanishes meanwhile; here it is passed over.
    """
    for parent, folders, files in os.walk(folder):
        for name in (*folders, *files):
            if fnmatchcase(name, pattern):
                yield Path(parent, name)


def below_with_links(
    folder: Path, names: Collection[str], *, but: str, closed: Callable[[Path], None] = lambda folder: None
) -> Iterator[Path]:
    """Files of these names at any depth, behind links to folders too: results of several machines are linked into one folder.
    A folder of such a name is given, too: its reader says that it is no file.

    A folder that several ways lead to, or a link back to one above it, is looked through once, under its own place where that
    lies below `folder`.

    Args:
        but: name of links that are not followed.
        closed: gets each folder that this user may not look into; it is passed over.
    """

    def told(error: OSError) -> None:
        if isinstance(error, PermissionError):
            closed(Path(error.filename))

    seen: set[tuple[int, int]] = set()
    waiting = [str(folder)]
    for start in waiting:
        for parent, folders, files in os.walk(start, onerror=told):
            if (place := _place(parent)) is None or place in seen:
                folders.clear()  # os.walk goes down into what is left
                continue
            seen.add(place)
            yield from (Path(parent, name) for name in names if name in files or name in folders)
            links = (os.path.join(parent, name) for name in folders if name != but)
            waiting.extend(path for path in links if os.path.islink(path))


def _place(folder: str) -> tuple[int, int] | None:
    """Equal for all names of a folder; None where it vanished."""
    try:
        found = os.stat(folder)
    except OSError:
        return None
    return found.st_dev, found.st_ino
