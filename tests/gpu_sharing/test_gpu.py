"""On a real GPU: its lock is that of its UUID, and a timing beside a process that works all the time is undisturbed."""

import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

import pytest
import torch

from sparsefront import gpu
from sparsefront.measure.timers import time_interleaved

pytestmark = pytest.mark.gpu
WORK = (
    "import sys, time, pathlib, torch; from sparsefront.gpu import shared, yield_gpu\n"
    "device = torch.device('cuda'); x = torch.randn(4096, 4096, device=device); file = pathlib.Path(sys.argv[1])\n"
    "with shared(device):\n"
    "    ends = time.monotonic() + 60\n"
    "    while time.monotonic() < ends:\n"
    "        yield_gpu(device); torch.mm(x, x); torch.cuda.synchronize(); file.touch()\n"
)


def test_one_lock_whatever_the_gpu_is_called():
    name = gpu.lock_name(torch.device("cuda"))
    assert name == gpu.lock_name(torch.device("cuda", torch.cuda.current_device()))
    assert len(name) >= 32


def test_a_timing_is_not_disturbed(tmp_path, monkeypatch):
    monkeypatch.setenv(gpu.FOLDER, str(tmp_path / "locks"))
    monkeypatch.setattr(gpu, "_accesses", {})
    device = torch.device("cuda")
    x = torch.randn(2048, 2048, device=device)

    def timed_ms() -> float:
        samples = time_interleaved({"product": lambda: torch.mm(x, x)}, device=device, warmup=5, samples=50)
        return median(samples["product"])

    undisturbed, file = timed_ms(), Path(tmp_path / "works")
    process = subprocess.Popen([sys.executable, "-c", WORK, str(file)], env=dict(os.environ))
    try:
        ends = time.monotonic() + 60
        while not file.exists():
            assert process.poll() is None and time.monotonic() < ends
            time.sleep(0.05)
        assert timed_ms() < 1.3 * undisturbed
        worked = file.stat().st_mtime_ns
        time.sleep(0.5)
        assert file.stat().st_mtime_ns > worked, "it goes on afterwards"
    finally:
        process.kill()
        process.wait()
