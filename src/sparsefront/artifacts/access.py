"""What lies in a folder of several users and this one may not read: told in one line, with its owner and the remedy."""

import os
import pwd
from pathlib import Path

from sparsefront.errors import Obstacle


def require_readable(folder: Path, *, otherwise: str) -> None:
    """Require that this user may read a folder and all below it; one that is not there is right.

    Raises:
        Obstacle: see `unreadable`.
    """
    if (obstacle := unreadable(folder, otherwise=otherwise)) is not None:
        raise obstacle


def unreadable(path: Path, *, otherwise: str) -> Obstacle | None:
    """The complaint about a file or folder that this user may not read, or not all of it; None where it may, or nothing is there.

    Args:
        otherwise: what helps where its owner does not: "name another cache_dir".
    """
    if (part := _first_denied(path)) is None:
        return None
    try:
        found = part.stat()
        whose, mode = _name(found.st_uid), f" with mode {found.st_mode & 0o777:03o}"
    except OSError:  # it has vanished since
        whose, mode = "another user", ""
    which = "it" if part == path else str(part)
    change = f"chmod a+rx {part}" if part in path.absolute().parents else f"chmod -R a+rX {path}"
    remedy = f"`{change}` by {whose} shares it; or {otherwise}"
    return Obstacle(str(path), None, f"cannot be read, since {which} belongs to {whose}{mode}: {remedy}")


def denied(error: PermissionError, *, otherwise: str) -> Obstacle:
    """The complaint about what an error says this user may not do.

    Args:
        otherwise: as of `unreadable`.
    """
    named = None if error.filename is None else Path(os.fsdecode(error.filename))
    if named is not None and (obstacle := unreadable(named, otherwise=otherwise)) is not None:
        return obstacle
    return Obstacle(
        str(named or "files"), None, f"{error.strerror}: make it readable and writable for you, or {otherwise}"
    )


def _first_denied(path: Path) -> Path | None:
    """The outermost folder on the way, else the first file or folder below, that this user may not read."""
    above = path.absolute().parents
    if (closed := next((folder for folder in reversed(above) if not os.access(folder, os.X_OK)), None)) is not None:
        return closed if os.path.lexists(closed) else None
    wanted = os.R_OK | os.X_OK if path.is_dir() else os.R_OK
    if not os.access(path, wanted):
        return path if path.exists() else None
    for parent, folders, files in os.walk(path):
        for name in (*folders, *files):
            inside = Path(parent, name)
            wanted = os.R_OK | os.X_OK if name in folders else os.R_OK
            if not os.access(inside, wanted) and inside.exists():
                return inside
    return None


def _name(user: int) -> str:
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return f"user {user}"
