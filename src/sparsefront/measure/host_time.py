"""How long a call keeps the processor busy, which the replay of a graph does not show and every other call waits for."""

import time
from collections.abc import Callable
from typing import Any

import torch

TRIES = 3  # the least counts: a first call may compile, and any may wait for another process
MOST_MS = 20.0


def require_prompt(call: Callable[[], Any], device: torch.device) -> None:
    """Reject what every network with it waits for whenever it is not replayed: some calls of cuSPARSELt take 0.25 s.

    Args:
        call: work for the device, as it is launched outside of a graph.
    Raises:
        RuntimeError: a call keeps the processor busy for more than MOST_MS; says for how long.
    """
    found = min(_host_ms(call, device) for _ in range(TRIES))
    if found > MOST_MS:
        raise RuntimeError(f"a call keeps the processor busy for {found:.0f} ms, more than {MOST_MS:.0f}")


def _host_ms(call: Callable[[], Any], device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)  # or the call waits for what was launched before
    start = time.perf_counter()
    call()
    return (time.perf_counter() - start) * 1e3
