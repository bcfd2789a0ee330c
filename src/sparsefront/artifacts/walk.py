"""What lies below a folder in which other processes work."""

import os
from collections.abc import Iterator
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
