"""compute-sanitizer finds no access outside memory, no uninitialised or racing use of shared memory in our CUDA kernels."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from sparsefront_kernels import cuda_library

SECONDS = 20
OUR_KERNELS = (
    "gathered",
    "blocked",
    "n_m_small_m",
    "n_m_mma",
    "n_m_cuda",
    "ell_small_m",
    "ell_cuda",
    "csr_cuda",
)  # how their names begin
SANITIZER = shutil.which("compute-sanitizer", path=f"{os.environ.get('PATH', os.defpath)}:/usr/local/cuda/bin")


@pytest.mark.gpu
@pytest.mark.parametrize("tool", ["memcheck", "racecheck"])
def test_clean(tool):
    if SANITIZER is None or not torch.cuda.is_available():
        pytest.skip("needs compute-sanitizer and a CUDA device")
    for name in cuda_library.SOURCES:
        if reason := cuda_library.unavailable_reason(name):
            pytest.skip(f"{name}: {reason}")
        cuda_library.build(name)  # not under the tool
    script = Path(__file__).with_name("sanitized.py")
    command = [SANITIZER, "--tool", tool, "--target-processes", "application-only", "--error-exitcode", "2"]
    for name in OUR_KERNELS:
        command += ["--kernel-name", f"kernel_substring={name}"]
    command += [sys.executable, str(script), str(SECONDS)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert "0 errors" in done.stdout or "0 hazards" in done.stdout
