"""compute-sanitizer finds no access outside memory, no uninitialized or racing use of shared memory in our CUDA kernels."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from packaging.version import Version
from sanitized import FAMILIES
from sanitizer_report import findings, report, written_by
from sparsefront_kernels import cuda_library

SECONDS = 20  # of each family; those of a tool run side by side
WATCHED = ("gathered", "blocked", *(family for family in FAMILIES if not family.startswith(("gathered", "blocked"))))
# where the package nvidia-cuda-sanitizer-api (extra `sanitizer`) puts it, on PATH, in CUDA's own folder
PLACES = [f"{path}/nvidia/cu13/bin" for path in sys.path] + [os.environ.get("PATH", os.defpath), "/usr/local/cuda/bin"]
SANITIZER = shutil.which("compute-sanitizer", path=os.pathsep.join(PLACES))
# Its release notes of 2025.4, 2026.1 and 2026.3 withdraw false races of mbarriers, of threads that one barrier orders through
# another, of warpgroups and of bulk copies that a barrier counts.
RACECHECK_FROM = Version("2026.3")
RINGS = Path(__file__).parent / "csrc" / "right_rings.cu"
RACE = """\
========= COMPUTE-SANITIZER
gathered_sm90: takes float16 or bfloat16
========= Error: Race reported between Write access at copy_bulk(unsigned int)+0x9750 in hopper.cuh:71
=========     and Read access at load_four(float *, unsigned int)+0x3ad0 in simt_sums.cuh:79 [372 hazards]
=========     Device Frame: void gathered_indexed_kernel<IndexedShape<(int)8>>(T1)+0x9750 in gathered_indexed.cu:158
=========     Saved host backtrace up to driver entry point at kernel launch time
=========         Host Frame: cudaLaunchKernelExC in libcudart.so
=========
========= Error: Race reported between Write access at copy_bulk(unsigned int)+0x8340 in hopper.cuh:71
=========     and Read access at load_four(float *, unsigned int)+0x2bc0 in simt_sums.cuh:79 [124 hazards]
=========     Device Frame: void gathered_indexed_kernel<IndexedShape<(int)16>>(T1)+0x8340 in gathered_indexed.cu:158
=========
ran {'gathered_indexed': 2}; 0 wrong
========= RACECHECK SUMMARY: 2 hazards displayed (2 errors, 0 warnings)
"""


def version(said: str) -> Version:
    """Of compute-sanitizer, by what it says of itself."""
    return Version(re.search(r"Version (\d+\.\d+)", said).group(1))


def under(tool: str) -> list[str]:
    """The beginning of a command that the tool watches."""
    return [
        SANITIZER,
        "--tool",
        tool,
        "--target-processes",
        "application-only",
        "--error-exitcode",
        "2",
        "--show-backtrace",
        "device",
        "--print-limit",
        # racecheck finds 254 in n_m_mma: what it does not say cannot be known
        "0" if tool == "racecheck" else "100",
    ]


def start(tool: str, family: str, output: Path) -> subprocess.Popen:
    """The tool on a family's kernels; what both say goes to a file."""
    script, command = Path(__file__).with_name("sanitized.py"), under(tool)
    for name in WATCHED:
        command += ["--kernel-name", f"kernel_substring={name}"]
    command += [sys.executable, str(script), str(SECONDS), family]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    with output.open("w") as file:
        return subprocess.Popen(command, env=environment, stdout=file, stderr=subprocess.STDOUT)


@pytest.fixture(scope="module")
def run(request, tmp_path_factory):
    """(tool, family) -> (exit code, output). All families of a tool that are to be tested start with the first of them, but for
    pytest-xdist, whose workers already run beside one another.
    """
    if SANITIZER is None or not torch.cuda.is_available():
        pytest.skip("needs compute-sanitizer and a CUDA device")
    for name in cuda_library.SOURCES:
        if reason := cuda_library.unavailable_reason(name):
            pytest.skip(f"{name}: {reason}")
        cuda_library.build(name)  # not under the tool
    folder, started = tmp_path_factory.mktemp("sanitizer"), {}
    tests = [item.callspec.params for item in request.session.items if getattr(item, "function", None) is test_clean]
    beside = [] if "PYTEST_XDIST_WORKER" in os.environ else [(one["tool"], one["family"]) for one in tests]

    def finished(tool: str, family: str) -> tuple[int, str]:
        if (tool, family) not in started:
            for one in {family, *(other for other_tool, other in beside if other_tool == tool)}:
                started[tool, one] = start(tool, one, folder / f"{tool}_{one}.log")
        code = started[tool, family].wait(timeout=600)
        return code, (folder / f"{tool}_{family}.log").read_text()

    yield finished
    for process in started.values():
        process.kill()
        process.wait()


def build_rings(folder: Path) -> Path:
    """The program of `right_rings.cu`."""
    program = folder / "right_rings"
    flags = ["-std=c++17", "-O3", "-arch=sm_90a", "-lineinfo"]
    subprocess.run([cuda_library.compiler(), *flags, "-o", program, RINGS], check=True, capture_output=True, text=True)
    return program


@pytest.fixture(scope="module")
def falsely_reported(tmp_path_factory) -> set[str]:
    """Functions whose writes racecheck takes for races in programs without one.

    It does not see that an mbarrier, or __syncwarp before a bulk copy, orders a slot's reads before it is filled again in a
    loop. The authors of FlashAttention found the same of cp.async.bulk (AI/RACECHECK_TMA_HAZARD.md in their repository). What it
    says of such writes in our kernels says nothing, then; `test_delays.py` covers those. A tool that reports none excuses none.
    """
    if SANITIZER is None or not torch.cuda.is_available() or cuda_library.compiler() is None:
        pytest.skip("needs compute-sanitizer, a CUDA device and nvcc")
    done = subprocess.run(
        [*under("racecheck"), build_rings(tmp_path_factory.mktemp("rings"))], capture_output=True, text=True
    )
    assert done.stdout.count(": right") == 3, f"these programs are right: {done.stdout[-1000:]}{done.stderr[-1000:]}"
    return set().union(*map(written_by, findings(done.stdout)))


@pytest.mark.gpu
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("tool", ["memcheck", "racecheck"])
def test_clean(tool, family, run, request):
    if tool == "racecheck" and SANITIZER is not None:
        found = version(subprocess.run([SANITIZER, "--version"], capture_output=True, text=True).stdout)
        if found < RACECHECK_FROM:
            pytest.skip(
                f"racecheck {found} is known for false races of barriers; the extra `sanitizer` brings {RACECHECK_FROM}"
            )
    code, output = run(tool, family)
    assert "; 0 wrong" in output and "SUMMARY: " in output, (
        f"{family}: {tool} ends with {code}\n{output[-1000:]}\n{report(output)}"
    )
    excused = request.getfixturevalue("falsely_reported") if tool == "racecheck" else set()
    left = unexcused(output, excused)
    said = "\n\n".join(map("\n".join, left[:20]))
    assert not left, f"{family}: {len(left)} findings, {sorted(excused)} excused\n{said}"
    assert all_displayed(output), f"{family}: not all findings are displayed\n{report(output)}"
    assert code == 0 or (code == 2 and excused and findings(output)), (
        f"{family}: {tool} ends with {code}\n{output[-1000:]}"
    )


def unexcused(output: str, excused: set[str]) -> list[list[str]]:
    """The findings in which some other function writes, or none is named."""
    return [finding for finding in findings(output) if not written_by(finding) or not written_by(finding) <= excused]


def all_displayed(output: str) -> bool:
    """Whether racecheck has said all that it found; true of other tools."""
    counts = re.search(r"RACECHECK SUMMARY: (\d+) hazards? displayed \((\d+) errors?, (\d+) warnings?\)", output)
    return counts is None or int(counts[1]) == int(counts[2]) + int(counts[3])


@pytest.mark.skipif(cuda_library.compiler() is None, reason="needs nvcc")
def test_the_programs_of_right_rings_compile(tmp_path):
    assert build_rings(tmp_path).is_file()


def test_finding_is_excused_by_its_writer():
    assert [written_by(finding) for finding in findings(RACE)] == [{"copy_bulk"}] * 2
    assert (
        unexcused(RACE, {"copy_bulk"}) == []
        and len(unexcused(RACE, {"store_word"})) == len(unexcused(RACE, set())) == 2
    )
    pieces = """\
========= Error: Race reported between Read access at load_transposed_blocks(unsigned int)+0x5280 in tensor_copy.cuh:104
=========     and Write access at void mma::ThreeOf32::bring<__half>(const thread_per_output::Inputs &)+0x4a in fragments.cuh:107
=========     and Write access at <unnamed>::store_sums(float *)+0x5280 in n_m_mma.cu:80 [16 hazards]
=========
========= Error: Race reported between Write access at (anonymous namespace)::store(T1 *)+0x10 in n_m_mma.cu:9
=========     and Read access at copy_bulk(unsigned int)+0x20 in hopper.cuh:75 [4 hazards]
=========
========= Error: Invalid __shared__ write of size 4 bytes
=========     at copy_bulk(unsigned int)+0x20 in hopper.cuh:75
=========
"""
    assert [written_by(finding) for finding in findings(pieces)] == [{"bring", "store_sums"}, {"store"}, set()]
    assert (
        len(unexcused(pieces, {"bring", "copy_bulk"})) == 3
        and len(unexcused(pieces, {"bring", "store_sums", "store"})) == 1
    )
