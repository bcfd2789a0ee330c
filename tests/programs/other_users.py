"""Functions in a process that may read what the modes of files allow and nothing else, as those of other users do: root's may
read everything.
"""

import ctypes
import os
import traceback
from collections.abc import Callable

CAPABILITIES_VERSION_3 = 0x20080522


class _Header(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint32), ("process", ctypes.c_int)]


def said_without_privileges(function: Callable[[], str], user: int | None = None) -> str:
    """What the function returns in a process of its own.

    Args:
        user: of that process, which only root can choose; its imports are done then. None: it stays this one, without
            root's privileges.
    """
    reading, writing = os.pipe()
    if (child := os.fork()) == 0:
        try:
            if user is not None:
                os.setgroups([])
                os.setgid(user)
                os.setuid(user)
            elif os.geteuid() == 0:
                nothing = (ctypes.c_uint32 * 6)()
                failed = ctypes.CDLL(None).capset(ctypes.byref(_Header(CAPABILITIES_VERSION_3, 0)), nothing)
                assert failed == 0
            said = function()
        except BaseException:
            said = traceback.format_exc()
        os.write(writing, said.encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as words:
        said = words.read()
    os.waitpid(child, 0)
    return said
