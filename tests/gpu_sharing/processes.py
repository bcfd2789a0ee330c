"""What the tests of the lock run in other processes, until there is a file FILE.enough: python processes.py WHAT FILE.

FILE gets the intervals of work.
"""

import json
import sys
import time
from pathlib import Path

import torch

from sparsefront import gpu
from sparsefront.gpu import exclusive, share_gpu, yield_gpu

CPU = torch.device("cpu")
BATCH_S, TIMING_S = 0.004, 0.04
gpu.lock_name = lambda device: "stand-in"  # for a GPU, of which there is none


def enough(file: Path) -> Path:
    return file.with_name(f"{file.name}.enough")


def train(file: Path) -> None:
    """Batch after batch, as a training does it."""
    with share_gpu(CPU), file.open("w") as out:
        while not enough(file).exists():
            yield_gpu(CPU)
            _work(out, BATCH_S)


def measure(file: Path) -> None:
    """Five timings from within work that is shared."""
    with share_gpu(CPU), file.open("w") as out:
        for _ in range(5):
            with exclusive(CPU):
                _work(out, TIMING_S)
            time.sleep(0.02)


def hold_alone(file: Path) -> None:
    with exclusive(CPU):
        file.write_text("held")
        _wait(file)


def hold_shared(file: Path) -> None:
    """Without giving way."""
    with share_gpu(CPU):
        file.write_text("held")
        _wait(file)


def _wait(file: Path) -> None:
    while not enough(file).exists():
        time.sleep(0.01)


def _work(out, seconds: float) -> None:
    start = time.monotonic()
    time.sleep(seconds)
    out.write(json.dumps({"start": start, "end": time.monotonic()}) + "\n")
    out.flush()


if __name__ == "__main__":
    globals()[sys.argv[1]](Path(sys.argv[2]))
