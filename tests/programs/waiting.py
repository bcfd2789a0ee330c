"""Waiting for other processes: no test's end depends on how busy the machine is."""

import time
from collections.abc import Callable
from typing import Any

PATIENCE_S = 600  # for what never comes: a machine with a load of twenty on two cores is far quicker


def wait_until(condition: Callable[[], Any], process: Any = None) -> Any:
    """What `condition()` returns first that is true.

    Args:
        process: must live on meanwhile.
    Raises:
        AssertionError: it has ended, or PATIENCE_S have passed.
    """
    ends = time.monotonic() + PATIENCE_S
    while not (value := condition()):
        assert process is None or process.poll() is None, "the process has ended"
        assert time.monotonic() < ends, f"still waiting after {PATIENCE_S} s"
        time.sleep(0.01)
    return value
