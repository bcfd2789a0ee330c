"""The exported checkpoint, found from the folder of the run that made it."""

import os
from pathlib import Path

LINK, PATH_FILE = "checkpoint", "checkpoint.txt"


def link_checkpoint(checkpoint: Path, directory: Path) -> str:
    """Put a link to the checkpoint into a run's folder: `checkpoint`, or `checkpoint.txt` with its path where links cannot be.

    The link is relative where both lie below the working directory, so that a project can be moved as a whole.

    Args:
        checkpoint: folder of an export.
    Returns:
        what to tell the user: the checkpoint's path, or that it was removed since, where nothing is linked.
    """
    if not checkpoint.is_dir():
        return f"not stored any more ({checkpoint}); reuse=false makes it again"
    inside = all(path.resolve().is_relative_to(Path.cwd()) for path in (checkpoint, directory))
    target = os.path.relpath(checkpoint.resolve(), directory.resolve()) if inside else checkpoint.resolve()
    link = directory / LINK
    try:
        link.unlink(missing_ok=True)
        link.symlink_to(target, target_is_directory=True)
    except OSError:
        (directory / PATH_FILE).write_text(f"{checkpoint.resolve()}\n")
    return str(checkpoint)
