"""The driver is asked about the GPU in use, whatever `CUDA_VISIBLE_DEVICES` holds, and while that GPU works.

A script stands in for nvidia-smi, and a function for what CUDA says of the devices that the variable leaves.
"""

import os
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from waiting import PATIENCE_S

from sparsefront.gpu import GpuQuery, clock_under_load

CUDA = torch.device("cuda")
BUSES = (0x17, 0x65, 0xCA)
UUIDS = ("GPU-aaaa1111", "GPU-bbbb2222", "GPU-cccc3333")
MIG_PARENTS = {"MIG-5c1f-of-the-third": 2, "MIG-GPU-bbbb2222/1/0": 1}
IDLE_MHZ, BUSY_MHZ = (345, 345, 345), (1755, 1830, 1980)
# Knows GPUs by PCI address; without --id it lists all of them, as the real one does. It waits for work where there will be some.
SCRIPT = """#!/bin/sh
for argument; do
  case $argument in
    --id=*) addresses=${argument#--id=} ;;
    --query-gpu=clocks.sm) field=clock ;;
    --query-gpu=driver_version) field=driver ;;
  esac
done
state=idle
if [ "$field" = clock ] && [ -e "$FAKE_GPUS/calls work" ]; then
  until [ -e "$FAKE_GPUS/working" ]; do sleep 0.01; done
  state=busy
fi
cd "$FAKE_GPUS"
for address in ${addresses:-0*}; do
  if [ "$field" = driver ]; then echo 580.65; else cat "$address/$state" || exit 6; fi
done
"""


@pytest.fixture
def gpus(monkeypatch, tmp_path) -> Path:
    """A machine with three GPUs; the file `working` in the folder says that one of them works at the moment."""
    for bus, idle, busy in zip(BUSES, IDLE_MHZ, BUSY_MHZ):
        folder = tmp_path / f"00000000:{bus:02x}:00.0"
        folder.mkdir()
        (folder / "idle").write_text(f"{idle}\n")
        (folder / "busy").write_text(f"{busy}\n")
    tool = tmp_path / "bin" / "nvidia-smi"
    tool.parent.mkdir()
    tool.write_text(SCRIPT)
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tool.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_GPUS", str(tmp_path))
    monkeypatch.setattr("sparsefront.gpu.TIMEOUT_S", PATIENCE_S)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: _first_visible())
    return tmp_path


def _first_visible() -> SimpleNamespace:
    """As CUDA counts: the first entry of the variable is device 0."""
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    index = MIG_PARENTS[first] if first in MIG_PARENTS else UUIDS.index(first) if first in UUIDS else int(first)
    return SimpleNamespace(pci_domain_id=0, pci_bus_id=BUSES[index], pci_device_id=0)


def work(gpus: Path):
    """A call that keeps the GPU busy for as long as it runs."""
    (gpus / "calls work").touch()

    def call() -> None:
        (gpus / "working").touch()
        time.sleep(0.08)
        (gpus / "working").unlink()

    return call


@pytest.mark.parametrize(
    ("visible", "clock"),
    [(None, 1755), ("1", 1830), ("2,0", 1980), (UUIDS[1], 1830), (f"{UUIDS[2]},{UUIDS[0]}", 1980)]
    + [(name, BUSY_MHZ[parent]) for name, parent in MIG_PARENTS.items()],
)
def test_clock_of_the_gpu_at_work(gpus, monkeypatch, visible, clock):
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert clock_under_load([work(gpus)], CUDA) == clock
    assert not (gpus / "working").exists()


def test_driver_of_the_gpu(gpus, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2")
    assert GpuQuery("driver_version", CUDA).answer() == "580.65"


@pytest.mark.gpu
def test_real_gpu_has_a_clock():
    matrix = torch.randn(4096, 4096, device="cuda", dtype=torch.float16)
    clock = clock_under_load([lambda: matrix @ matrix], torch.device("cuda"))
    assert clock is not None and 300 < clock < 4000
    assert "." in GpuQuery("driver_version", torch.device("cuda")).answer()
