"""On a real GPU: its lock is that of its UUID, and no other process works on it during a timing."""

import os
import subprocess
import sys

import pytest
import torch
from waiting import wait_until

from sparsefront import gpu
from sparsefront.measure.timers import time_interleaved

pytestmark = pytest.mark.gpu
WORK = (
    "import sys, time, pathlib, torch; from sparsefront.gpu import share_gpu, yield_gpu\n"
    "device = torch.device('cuda'); x = torch.randn(4096, 4096, device=device); file = pathlib.Path(sys.argv[1])\n"
    "with share_gpu(device):\n"
    "    ends = time.monotonic() + 600\n"
    "    while time.monotonic() < ends:\n"
    "        yield_gpu(device); torch.mm(x, x); torch.cuda.synchronize(); file.touch()\n"
)


def test_one_lock_for_each_gpu():
    name = gpu.lock_name(torch.device("cuda"))
    assert name == gpu.lock_name(torch.device("cuda", torch.cuda.current_device()))
    assert len(name) >= 32


def test_a_timing_is_not_disturbed(tmp_path, monkeypatch):
    monkeypatch.setenv(gpu.FOLDER, str(tmp_path / "locks"))
    monkeypatch.setattr(gpu, "_accesses", {})
    file, seen, device = tmp_path / "works", [], torch.device("cuda")

    def product() -> None:
        torch.mm(x, x)
        seen.append(file.stat().st_mtime_ns)

    process = subprocess.Popen([sys.executable, "-c", WORK, str(file)], env=dict(os.environ))
    try:
        wait_until(file.exists)
        x = torch.randn(2048, 2048, device=device)
        time_interleaved({"product": product}, device=device, warmup=5, samples=50)
        assert len(set(seen)) == 1, "the other process worked during the timing"
        wait_until(lambda: file.stat().st_mtime_ns > seen[0])  # it goes on afterwards
    finally:
        process.kill()
        process.wait()
