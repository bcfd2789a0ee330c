"""What sources and PTX of CUDA kernels must look like, where a wrong form runs right today and no test on a GPU would tell.

The checks are of the text: they show that a rule is kept, not that something went wrong without it.
"""

import re
import subprocess

import pytest
from sparsefront_kernels import cuda_library

SOURCES = {
    str(path.relative_to(cuda_library.PACKAGE)): re.sub(r"//[^\n]*", "", path.read_text(encoding="utf-8"))
    for path in sorted(cuda_library.PACKAGE.rglob("*.cu*"))
}


@pytest.fixture(scope="module")
def toolchain_ptx(tmp_path_factory) -> str:
    """Of the small library that uses what all use."""
    if cuda_library.compiler() is None:
        pytest.skip("needs nvcc")
    target = tmp_path_factory.mktemp("ptx") / "toolchain.ptx"
    source = cuda_library.SHARED / f"{cuda_library.TOOLCHAIN}.cu"
    command = [cuda_library.compiler(), "-std=c++17", "-O3", "-arch=sm_90a", "-ptx", str(source), "-o", str(target)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return target.read_text()


def instructions(ptx: str) -> list[str]:
    """The lines that are neither empty, nor comments but those of inline assembly, nor labels."""
    lines = (line.strip() for line in ptx.splitlines())
    return [line for line in lines if line and not line.startswith((".", "$", "{", "}", "// %"))]


def test_warps_meet_before_a_barrier(toolchain_ptx):
    """`.aligned` takes whole warps; a loop that some threads leave earlier, or a branch, may have parted them."""
    lines = [line for line in instructions(toolchain_ptx) if not line.startswith("//")]
    arrivals = [place for place, line in enumerate(lines) if line.startswith("barrier.cluster.arrive")]
    assert arrivals and all(lines[place - 1].startswith("bar.warp.sync") for place in arrivals)


def test_barriers_of_a_cluster():
    users = {name: text.count("barrier.cluster.arrive") for name, text in SOURCES.items() if "barrier.cluster" in text}
    assert "cuda/hopper.cuh" in users
    for name, arrivals in users.items():
        synced = re.findall(
            r'\) \{\s*#ifndef BEFORE_HOPPER\s*__syncwarp\(\);\s*asm volatile\("barrier\.cluster\.arrive', SOURCES[name]
        )
        assert len(synced) == arrivals, name


def test_every_device_is_remembered():
    """A function's static variable is of the process: what it keeps of a device must be an array over devices."""
    for name, text in SOURCES.items():
        for kept in re.findall(r"^\s+static (?!const|auto|_)[^;(]*;", text, re.MULTILINE):
            assert "[MOST_DEVICES]" in kept, f"{name}: {kept.strip()}"
    assert "clusters_at_once[device]" in SOURCES["norm/csrc/layer_norm_columns.cu"]
