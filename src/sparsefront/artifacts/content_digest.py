"""Names for content: the same bytes give the same digest, wherever they lie."""

import hashlib
from pathlib import Path


def file_digest(path: Path) -> str:
    """sha256 of a file in hexadecimal, read as a stream."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def listing_digest(root: Path) -> str:
    """sha256 over the relative path and size of every file below `root`.

    For folders of a hundred gigabytes and more, whose bytes would take longer to read than a run of training.
    """
    listing = hashlib.sha256()
    for path in sorted(path for path in root.rglob("*") if path.is_file()):
        listing.update(f"{path.relative_to(root).as_posix()}\0{path.stat().st_size}\n".encode())
    return listing.hexdigest()
