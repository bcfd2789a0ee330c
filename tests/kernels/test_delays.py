"""mbarriers and copies into shared memory that come late now and then change no result.

For what racecheck cannot tell (`test_sanitizer.py`): shared memory that is filled again while other warps may still read it.
Kernels without mbarriers (csr_sm90, ell_sm90, n_m_sm90, ell_small_m, n_m_small_m) have nothing to delay: racecheck covers them.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from sanitized import FAMILIES
from sparsefront_kernels import cuda_library

HERE = Path(__file__).parent
DELAYS = HERE / "csrc" / "delays.cuh"
WITH_BARRIERS = tuple(family for family in FAMILIES if family.startswith(("gathered", "blocked", "n_m_mma")))
SECONDS = 15  # of each family; all run side by side
LONGEST_S = 150
# of these kernels, and of the weights alone in gathered_overlay
LIBRARIES = [name for name in cuda_library.SOURCES if name.startswith(("gathered", "blocked_sm90", "n_m_mma", "csr"))]
PROGRAM = """
import sys
from sparsefront_kernels.cuda_library import build_missing, gpu_architectures, runs_on
print(build_missing([name for name in sys.argv[1:] if runs_on(name, gpu_architectures())]))
"""
BUILD = [sys.executable, "-c", PROGRAM]  # prints library -> why it has none


def delayed(cache: Path, *flags: str) -> dict[str, str]:
    """An environment in which sources are compiled behind `delays.cuh`, apart from the others."""
    paths = os.pathsep.join(path for path in sys.path if path)
    appended = " ".join([os.environ.get("NVCC_APPEND_FLAGS", ""), f"-include {DELAYS}", *flags]).strip()
    return os.environ | {"NVCC_APPEND_FLAGS": appended, "SPARSEFRONT_KERNELS_CACHE": str(cache), "PYTHONPATH": paths}


def start(family: str, seconds: float, environment: dict[str, str], output: Path) -> subprocess.Popen:
    command = [sys.executable, str(HERE / "sanitized.py"), str(seconds), family]
    with output.open("w") as file:
        return subprocess.Popen(command, env=environment, stdout=file, stderr=subprocess.STDOUT)


@pytest.fixture(scope="module")
def run(request, tmp_path_factory, folder_of_all):
    """family -> (exit code, output); all families that are to be tested start with the first."""
    if not torch.cuda.is_available() or cuda_library.compiler() is None:
        pytest.skip("needs a CUDA device and nvcc")
    folder, started = tmp_path_factory.mktemp("delays"), {}
    environment = delayed(folder_of_all / "delays")
    built = subprocess.run([*BUILD, *LIBRARIES], env=environment, capture_output=True, text=True)
    assert built.stdout.strip() == "{}", built.stdout + built.stderr[-2000:]
    tests = [
        item.callspec.params["family"]
        for item in request.session.items
        if getattr(item, "function", None) is test_delays
    ]

    def finished(family: str) -> tuple[int | None, str]:
        for one in {family, *tests} - started.keys():
            started[one] = start(one, SECONDS, environment, folder / f"{one}.log")
        try:
            code = started[family].wait(timeout=LONGEST_S)
        except subprocess.TimeoutExpired:
            code = None
        return code, (folder / f"{family}.log").read_text()

    yield finished
    for process in started.values():
        process.kill()
        process.wait()


@pytest.mark.gpu
@pytest.mark.parametrize("family", WITH_BARRIERS)
def test_delays(family, run):
    code, output = run(family)
    assert code == 0 and "; 0 wrong" in output, f"{family}: {'it hangs' if code is None else code}\n{output[-2000:]}"


@pytest.mark.gpu
def test_waits_that_are_missing_are_found(tmp_path):
    """Or else results would show nothing: here a quarter of all waits do not wait."""
    if not torch.cuda.is_available() or cuda_library.compiler() is None:
        pytest.skip("needs a CUDA device and nvcc")
    environment = delayed(tmp_path / "cache", "-DSPARSEFRONT_WAITS_MISSING")
    built = subprocess.run([*BUILD, "gathered_simt"], env=environment, capture_output=True, text=True)
    assert built.stdout.strip() == "{}", built.stdout + built.stderr[-2000:]
    process = start("gathered_simt", SECONDS, environment, tmp_path / "log")
    try:
        code = process.wait(timeout=LONGEST_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        code = None
    output = (tmp_path / "log").read_text()
    assert code is None or shows_a_fault(output), output[-2000:]


def shows_a_fault(output: str) -> bool:
    """Of a kernel that ran: where none could, `sanitized.py` fails as well, but says that 0 are wrong."""
    return re.search(r"; [1-9]\d* wrong", output) is not None or "CUDA error" in output


def test_empty_run_shows_no_fault():
    assert not shows_a_fault("gathered_simt: needs a CUDA device\nran {}; 0 wrong\n")
    assert shows_a_fault("ran {'gathered_simt': 3}; 1 wrong\n") and shows_a_fault("RuntimeError: CUDA error 700")


@pytest.mark.skipif(cuda_library.compiler() is None, reason="needs nvcc")
@pytest.mark.parametrize("flags", [(), ("-DSPARSEFRONT_WAITS_MISSING",)], ids=["delays", "waits missing"])
def test_a_source_compiles_with_delays(tmp_path, flags):
    """As the builder does it; a source that does not mean these functions by these names would fail."""
    environment = delayed(tmp_path, *flags)
    source = cuda_library.SOURCES["gathered_simt"]  # one with barriers and bulk copies: others have nothing to delay
    command = [
        cuda_library.compiler(),
        "-std=c++17",
        "-arch=compute_90a",
        "-ptx",
        "-Xcicc",
        "-O0",
        "-o",
        tmp_path / "x.ptx",
        source,
    ]
    subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    code = (tmp_path / "x.ptx").read_text()
    assert ".entry" in code and "nanosleep" in code
