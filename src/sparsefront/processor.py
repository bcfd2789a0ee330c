"""The CPU that work runs on: without its name and the number of threads a time on a CPU means nothing."""

import platform
import subprocess
from functools import lru_cache
from pathlib import Path

import torch

CPU_INFO = Path("/proc/cpuinfo")
NAMES = ("model name", "Model", "Hardware", "cpu model")  # x86; ARM boards; older ARM kernels; MIPS


def processor_facts(device: torch.device) -> dict[str, str | int]:
    """`processor` and `threads` (those that one operator of PyTorch may use now) of a CPU; empty for another device."""
    return {"processor": processor_name(), "threads": torch.get_num_threads()} if device.type == "cpu" else {}


@lru_cache
def processor_name() -> str:
    """As the operating system names it ("Intel(R) Xeon(R) Platinum 8480+"); else the kind of machine (x86_64, arm64)."""
    if CPU_INFO.exists():
        lines = dict(line.split(":", 1) for line in CPU_INFO.read_text().splitlines() if ":" in line)
        facts = {name.strip(): value.strip() for name, value in lines.items()}
        named = next((facts[name] for name in NAMES if facts.get(name)), None)
    else:
        named = _asked("sysctl", "-n", "machdep.cpu.brand_string")
    return named or platform.processor() or platform.machine()


def _asked(*command: str) -> str | None:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip() or None
    except (OSError, subprocess.SubprocessError):
        return None
