"""What machines tell each other over a network that anybody may write to, signed with a secret that lies in the shared cache.

The first machine makes a secret for each of its processes, in a file that its user alone can read, below `cache_dir`; its name
is no secret. Whoever can read the file may sign (HMAC-SHA256). Nothing is unpickled before its signature was checked.
"""

import hmac
import os
import re
import secrets
import time
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

from sparsefront.errors import Obstacle

FOLDER = ".machines"  # of the cache; the dot keeps it out of the list of stages
SEEN_WITHIN_S = 60.0  # by other machines, of a network file system
UNUSED_AFTER_S = 24 * 3600.0  # the others read a secret as they start
SIZE = 32
NOBODY = 65534  # whom a network file system takes root for


def make_secret(shared: Path) -> tuple[str, bytes]:
    """A new one: the name by which the others find it, and its bytes.

    Args:
        shared: the folder that all machines see, cache_dir.
    """
    folder = shared / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.iterdir():
        with suppress(OSError):  # of somebody else
            if time.time() - old.stat().st_mtime > UNUSED_AFTER_S:
                old.unlink()
    name, secret = secrets.token_hex(16), secrets.token_bytes(SIZE)
    descriptor = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(secret)
        file.flush()
        os.fsync(descriptor)
    return name, secret


def read_secret(shared: Path, name: bytes) -> bytes:
    """The secret that the first machine made.

    Args:
        name: as the store has it; nothing is known of who wrote it.
    Raises:
        Obstacle: the name is none, or the file is not there, not whole, or not of this user alone.
    """
    text = name.decode(errors="replace")
    if not re.fullmatch(r"[0-9a-f]{32}", text):
        raise Obstacle(
            "MASTER_PORT", None, "is not the port of sparsefront's first machine: choose one that is free there"
        )
    file, ends = shared / FOLDER / text, time.monotonic() + SEEN_WITHIN_S
    while True:
        try:
            found = file.stat()
            if found.st_size == SIZE:
                break
        except FileNotFoundError:
            pass
        if time.monotonic() > ends:
            why = "machine 0 wrote it, and it cannot be seen here: give all machines one cache_dir, on a shared file system"
            raise Obstacle(str(file), None, why)
        time.sleep(0.1)
    owners = (os.geteuid(), NOBODY) if os.geteuid() == 0 else (os.geteuid(),)
    if found.st_mode & 0o077 or found.st_uid not in owners:
        why = f"belongs to user {found.st_uid} with mode {found.st_mode & 0o777:03o}"
        remedy = "must be this user's, readable by nobody else; start all machines as one user"
        raise Obstacle(str(file), None, f"{why}: {remedy}")
    return file.read_bytes()


def signed(secret: bytes, key: str, content: bytes) -> bytes:
    """The content behind its signature, which holds for this key alone."""
    return _signature(secret, key, content) + content


def content_of(secret: bytes, key: str, received: bytes) -> bytes | None:
    """What `signed` was given; None where the signature is of another secret, key or content."""
    signature, content = received[: sha256().digest_size], received[sha256().digest_size :]
    return content if hmac.compare_digest(signature, _signature(secret, key, content)) else None


def _signature(secret: bytes, key: str, content: bytes) -> bytes:
    return hmac.digest(secret, key.encode() + b"\0" + content, "sha256")
