"""What a local copy of a model is called."""

import os
from pathlib import Path


def folder_name(path: str) -> str:
    """The folder's own name; of a snapshot in the hub's cache, whose name is a commit, that of its repository."""
    folder = Path(os.path.abspath(path))
    if folder.parent.name == "snapshots" and folder.parent.parent.name.startswith("models--"):
        return folder.parent.parent.name.rpartition("--")[2]
    return folder.name
