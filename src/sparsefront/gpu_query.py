"""Questions to the driver about the GPU in use, through its own tool `nvidia-smi`."""

import subprocess
import time
from collections.abc import Callable, Sequence
from itertools import cycle

import torch

TIMEOUT_S = 10


class GpuQuery:
    """One field of one GPU, asked for in the background, so that the GPU can go on working until the answer is here.

    The GPU is named by its PCI address, which CUDA knows of the device in use. So `CUDA_VISIBLE_DEVICES` is respected
    whatever it holds (indices, UUIDs, names of MIG instances) and in whatever order CUDA counts; the tool itself ignores
    that variable. A MIG instance has the address, and the clock, of the GPU that it is a part of.

    Args:
        field: one that `nvidia-smi --help-query-gpu` lists, such as clocks.sm.
        device: of type cuda.
    """

    def __init__(self, field: str, device: torch.device) -> None:
        command = ["nvidia-smi", f"--id={pci_address(device)}", f"--query-gpu={field}", "--format=csv,noheader,nounits"]
        try:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
            )
        except OSError:
            self._process = None

    @property
    def answered(self) -> bool:
        """Whether `answer` returns at once."""
        return self._process is None or self._process.poll() is not None

    def answer(self, timeout_s: float = TIMEOUT_S) -> str | None:
        """The field's value; None where there is no tool, no value, or nothing after `timeout_s` seconds more."""
        if self._process is None:
            return None
        try:
            text, _ = self._process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()
            return None
        # One line, for one GPU was named. Anything else is no answer: another GPU's value is worse than none.
        return text.strip() if self._process.returncode == 0 and len(text.strip().splitlines()) == 1 else None


def pci_address(device: torch.device) -> str:
    """domain:bus:device.function, as the driver's tool takes it."""
    found = torch.cuda.get_device_properties(device)
    return f"{found.pci_domain_id:08x}:{found.pci_bus_id:02x}:{found.pci_device_id:02x}.0"


def clock_under_load(calls: Sequence[Callable[[], object]], device: torch.device) -> float | None:
    """SM clock in MHz of the GPU in use, read while it runs these calls in turn, one at a time as the timer does.

    For use right after a timing, with what was timed: an idle GPU clocks down, and the tool that reads the clock would
    disturb the timing itself. Returns None on a CPU, or where the driver does not tell.
    """
    if device.type != "cuda":
        return None
    query, ends = GpuQuery("clocks.sm", device), time.perf_counter() + TIMEOUT_S
    for call in cycle(calls):
        if query.answered or time.perf_counter() > ends:
            break
        call()
        torch.cuda.synchronize(device)
    clock = query.answer(timeout_s=0.1)
    return float(clock) if clock and clock.isdigit() else None
