"""Which process a file belongs to, told in the file's name, and whether that process lives.

A process can be looked up only by those that count processes as it does: on the same boot of the same machine, in the same
container. Of any other one only its own signs of life tell.
"""

import os
import re
import socket
from functools import cache
from hashlib import sha256
from pathlib import Path


@cache
def host() -> str:
    """This machine since it was started, or this container: its name, for people, and a digest that no other one has."""
    name = socket.gethostname()
    boot = _text("/proc/sys/kernel/random/boot_id")
    try:
        namespace = os.readlink("/proc/self/ns/pid")
    except OSError:
        namespace = ""
    digest = sha256(f"{name} {boot} {namespace}".encode()).hexdigest()[:8]
    return f"{re.sub('[^A-Za-z0-9]+', '_', name)[:40]}_{digest}"


def process_tag() -> str:
    """`<host>.<process>.<start>` of this process, for names of files: no other process has it, on any machine."""
    return f"{host()}.{os.getpid()}.{_state_and_start(os.getpid())[1]}"


def lives(tag: str) -> bool | None:
    """Whether the process of a tag lives; None where that cannot be known from here, as of a text that is no tag."""
    parts = tag.split(".")
    if len(parts) != 3 or parts[0] != host() or not parts[1].isdecimal():
        return None
    _, process, start = parts
    try:
        os.kill(int(process), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # another user's: it is there
    state, found = _state_and_start(int(process))
    return state not in ("Z", "X") and found in (start, "")


def _state_and_start(process: int) -> tuple[str, str]:
    """A letter, Z of one that has ended; and the ticks from the boot to its start, as its number may be given again.

    Both are empty where the system does not tell.
    """
    content = _text(f"/proc/{process}/stat").rpartition(")")[2].split()
    return (content[0], content[19]) if content else ("", "")


def _text(file: str) -> str:
    try:
        return Path(file).read_text()
    except OSError:
        return ""
