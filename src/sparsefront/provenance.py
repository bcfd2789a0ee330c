"""What a run ran on: the facts without which its numbers cannot be compared."""

import os
import platform
import subprocess
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch

from sparsefront.artifacts.digest import versions


@dataclass(frozen=True)
class Provenance:
    """`commit` carries "-dirty" where tracked files were changed; outside a checkout it is what the environment variable
    SPARSEFRONT_COMMIT says (for code that was copied to a GPU machine), or None. GPU facts are None on a CPU. No machine is
    named.
    """

    commit: str | None
    gpu: str | None
    driver: str | None
    cuda: str | None
    python: str
    torch_version: str
    triton_version: str | None
    lightning_version: str | None
    transformers_version: str | None


def provenance(device: torch.device) -> Provenance:
    """Facts about this process and the device that it measures on."""
    found = versions("triton", "pytorch-lightning", "transformers")
    on_gpu = device.type == "cuda"
    return Provenance(
        commit=_commit(),
        gpu=torch.cuda.get_device_name(device) if on_gpu else None,
        driver=_query_driver("driver_version") if on_gpu else None,
        cuda=torch.version.cuda if on_gpu else None,
        python=platform.python_version(),
        torch_version=torch.__version__,
        triton_version=found["triton"],
        lightning_version=found["pytorch-lightning"],
        transformers_version=found["transformers"],
    )


def gpu_clock_mhz(device: torch.device) -> float | None:
    """SM clock at this moment; None on a CPU or where the driver does not tell."""
    clock = _query_driver("clocks.sm") if device.type == "cuda" else None
    return float(clock) if clock and clock.isdigit() else None


def _query_driver(field: str) -> str | None:
    """One field of the first GPU from the driver's own tool; None where it is absent."""
    command = ["nvidia-smi", f"--query-gpu={field}", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.splitlines()[0].strip() if answer else None


@lru_cache
def _commit() -> str | None:
    """The checkout that this code was imported from, or what the environment says of a copy."""
    if "SPARSEFRONT_COMMIT" in os.environ:
        return os.environ["SPARSEFRONT_COMMIT"]
    folder = Path(__file__).parent
    try:
        describe = ["git", "-C", str(folder), "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty"]
        return subprocess.run(describe, capture_output=True, text=True, timeout=10, check=True).stdout.strip() or None
    except (OSError, subprocess.SubprocessError):
        return None
