"""What the tests of the lock run in other processes: python processes.py WHAT FILE SECONDS; FILE gets the intervals of work."""

import json
import os
import sys
import time
from pathlib import Path

import torch

from sparsefront import gpu
from sparsefront.gpu import exclusive, shared, yield_gpu

CPU = torch.device("cpu")
BATCH_S, TIMING_S = 0.004, 0.04
gpu.lock_name = lambda device: "stand-in"  # for a GPU, of which there is none


def train(file: Path, seconds: float) -> None:
    """Batch after batch, as a training does it."""
    with shared(CPU), file.open("w") as out:
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            yield_gpu(CPU)
            _work(out, BATCH_S)


def measure(file: Path, seconds: float) -> None:
    """Timings from within work that is shared; the waits for them too."""
    with shared(CPU), file.open("w") as out:
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            asked = time.monotonic()
            with exclusive(CPU):
                _work(out, TIMING_S, waited=time.monotonic() - asked)
            time.sleep(0.02)


def hold_alone(file: Path, seconds: float) -> None:
    with exclusive(CPU):
        file.write_text("held")
        time.sleep(seconds)


def hold_shared(file: Path, seconds: float) -> None:
    """Without giving way."""
    with shared(CPU):
        file.write_text("held")
        time.sleep(seconds)


def fork_while_alone(file: Path, seconds: float) -> None:
    """As a loader's worker is started; leaves the process id of the child."""
    with exclusive(CPU):
        if (child := os.fork()) == 0:
            time.sleep(seconds)
            os._exit(0)
        file.write_text(str(child))
        time.sleep(seconds)


def _work(out, seconds: float, **more: float) -> None:
    start = time.monotonic()
    time.sleep(seconds)
    out.write(json.dumps({"start": start, "end": time.monotonic(), **more}) + "\n")
    out.flush()


if __name__ == "__main__":
    globals()[sys.argv[1]](Path(sys.argv[2]), float(sys.argv[3]))
