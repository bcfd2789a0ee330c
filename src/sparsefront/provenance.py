"""Provenance of a measurement: hardware, versions and commit."""

import os
import platform
import subprocess
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path

import torch

from sparsefront.artifacts.content_digest import versions
from sparsefront.gpu import GpuQuery


@dataclass(frozen=True)
class Provenance:
    """`time` is ISO 8601 in UTC. `commit` ends in "-dirty" if tracked files were changed; outside a checkout it is the
    environment variable SPARSEFRONT_COMMIT (for code copied to a GPU machine), or None. GPU fields are None on a CPU,
    `processor` and `threads` on a GPU. Host names are not recorded.
    """

    time: str
    commit: str | None
    gpu: str | None
    driver: str | None
    cuda: str | None
    python: str
    torch_version: str
    triton_version: str | None
    lightning_version: str | None
    transformers_version: str | None
    processor: str | None = None
    threads: int | None = None


def provenance(device: torch.device) -> Provenance:
    """The provenance of a measurement made now, in this process, on this device."""
    package_versions = versions("triton", "pytorch-lightning", "transformers")
    on_gpu = device.type == "cuda"
    return Provenance(
        time=datetime.now(UTC).isoformat(timespec="seconds"),
        commit=code_commit(),
        gpu=torch.cuda.get_device_name(device) if on_gpu else None,
        driver=GpuQuery("driver_version", device).answer() if on_gpu else None,
        cuda=torch.version.cuda if on_gpu else None,
        python=platform.python_version(),
        torch_version=torch.__version__,
        triton_version=package_versions["triton"],
        lightning_version=package_versions["pytorch-lightning"],
        transformers_version=package_versions["transformers"],
        **processor_facts(device),
    )


@lru_cache
def code_commit() -> str | None:
    """The commit of this code's checkout, or SPARSEFRONT_COMMIT; None outside a checkout.

    Cached: called when a process starts, it names the imported code even if another commit is checked out later.
    """
    if "SPARSEFRONT_COMMIT" in os.environ:
        return os.environ["SPARSEFRONT_COMMIT"]
    git = ("git", "-C", str(Path(__file__).parent))
    if _command_output(*git, "ls-files", "--error-unmatch", Path(__file__).name) is None:
        return None  # installed inside another checkout, or outside any
    return _command_output(*git, "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty")


CPU_INFO = Path("/proc/cpuinfo")
NAMES = ("model name", "Model", "Hardware", "cpu model")  # x86; ARM boards; older ARM kernels; MIPS


def processor_facts(device: torch.device) -> dict[str, str | int]:
    """`processor` and `threads` (`torch.get_num_threads`) for a CPU; empty for other devices."""
    return {"processor": processor_name(), "threads": torch.get_num_threads()} if device.type == "cpu" else {}


@lru_cache
def processor_name() -> str:
    """The operating system's name of the CPU ("Intel(R) Xeon(R) Platinum 8480+"), else its architecture (x86_64, arm64)."""
    if CPU_INFO.exists():
        lines = dict(line.split(":", 1) for line in CPU_INFO.read_text(encoding="utf-8").splitlines() if ":" in line)
        facts = {name.strip(): value.strip() for name, value in lines.items()}
        model_name = next((facts[name] for name in NAMES if facts.get(name)), None)
    else:
        model_name = _command_output("sysctl", "-n", "machdep.cpu.brand_string")
    return model_name or platform.processor() or platform.machine()


def _command_output(*command: str) -> str | None:
    """A command's output; None where it fails or is empty."""
    try:
        return (
            subprocess.run(
                command, capture_output=True, text=True, timeout=10, check=True, encoding="utf-8", errors="replace"
            ).stdout.strip()
            or None
        )
    except (OSError, subprocess.SubprocessError):
        return None
