"""Triton kernels compile for real GPUs, with no GPU here: what the interpreter forgives, the compiler does not."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

# What one block may have; sm_89 is the smallest of those that the kernels must fit.
SHARED_BYTES = {89: 101_376, 90: 232_448}


def test_kernels_compile_and_fit_into_shared_memory():
    pytest.importorskip("triton", reason="Triton is not installed")
    script = Path(__file__).with_name("compile_for_gpu.py")
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    command = [sys.executable, str(script), *map(str, SHARED_BYTES)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    lines = [line.split(" | ") for line in done.stdout.splitlines()]
    kernels = {name.split()[-1] for name, *_ in lines}
    products = {"_gathered_triton_kernel", "_blocked_triton_kernel", "_n_m_triton_kernel", "_n_m_rebuild_kernel"}
    assert kernels == {*products, "_transpose_kernel", "_layer_norm_columns_kernel", "_epilogue_kernel"}
    assert len(lines) >= 40
    for name, capability, shared, rounds_to_tf32 in lines:
        assert int(shared) <= SHARED_BYTES[int(capability)], f"{name} on sm_{capability}"
        assert rounds_to_tf32 == "False", f"{name} on sm_{capability}: none of them was asked for TF32"
