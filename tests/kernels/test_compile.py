"""Triton kernels compile for real GPUs, with no GPU here: what the interpreter forgives, the compiler does not."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import sparsefront_kernels

# What one block may have; sm_89 and sm_120 are the smallest of those that the kernels must fit.
SHARED_BYTES = {80: 166_912, 89: 101_376, 90: 232_448, 100: 232_448, 120: 101_376}
EVERY_KERNEL = (89, 90)  # on the others those that multiply
PRODUCTS = {"_gathered_triton_kernel", "_blocked_triton_kernel"}


def test_kernels_fit_into_shared_memory():
    pytest.importorskip("triton", reason="Triton is not installed")
    script = Path(__file__).with_name("compile_for_gpu.py")
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    others = [capability for capability in SHARED_BYTES if capability not in EVERY_KERNEL]
    command = [sys.executable, str(script), *map(str, EVERY_KERNEL), "products", *map(str, others)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    lines = [line.split(" | ") for line in done.stdout.splitlines()]
    for capability in SHARED_BYTES:
        kernels = {name.split()[-1] for name, compiled_for, *_ in lines if int(compiled_for) == capability}
        assert kernels == (triton_kernels() if capability in EVERY_KERNEL else PRODUCTS)
    assert len(lines) >= 60
    for name, capability, shared, rounds_to_tf32 in lines:
        assert int(shared) <= SHARED_BYTES[int(capability)], f"{name} on sm_{capability}"
        asked = name.startswith("gathered_triton_tf32") and name.endswith("_gathered_triton_kernel")
        assert rounds_to_tf32 == str(asked), f"{name} on sm_{capability}: {'' if asked else 'not '}asked for TF32"


def triton_kernels() -> set[str]:
    """Of the whole package, as its sources have them."""
    sources = Path(sparsefront_kernels.__file__).parent.rglob("*.py")
    return {name for file in sources for name in re.findall(r"@triton\.jit.*\ndef (\w+_kernel)\(", file.read_text())}
