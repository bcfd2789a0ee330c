"""Files that are expensive to make and made once, also when several processes want them."""

import os
from collections.abc import Callable
from pathlib import Path


def made_once(target: Path, make: Callable[[Path], None]) -> Path:
    """`target`, made by the first process that asks; the others wait for it.

    Args:
        target: where the file belongs; its folder is created.
        make: writes the whole file to the path it is given, a neighbour that is renamed to `target` when complete, so
            that a process killed halfway leaves nothing that could be taken for the file.
    """
    from filelock import FileLock

    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(target.with_name(target.name + ".lock")):
        if not target.exists():
            unfinished = target.with_name(target.name + ".unfinished")
            make(unfinished)
            os.replace(unfinished, target)
    return target
