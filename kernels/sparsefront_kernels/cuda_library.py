"""CUDA sources become shared libraries: at first use, or ahead of time with `python -m sparsefront_kernels.build`.

torch's extension builder compiles them, in a process of its own. A library has a C interface and
is opened with ctypes: it includes no header of PyTorch, builds in seconds, and a call of it costs a microsecond or two.

Each is kept in a folder of $SPARSEFRONT_KERNELS_CACHE (~/.cache/sparsefront_kernels where that is not set), whose name
holds a hash of the sources, the flags and PyTorch's version, and one of the compiler's version. The folder also holds
what the compiler said: registers, spills and warnings of every kernel.
"""

import ctypes
import functools
import hashlib
import json
import logging
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

import torch

log = logging.getLogger(__name__)
PACKAGE = Path(__file__).parent
SHARED = PACKAGE / "cuda"  # headers that the families' sources include
SOURCES = {
    "blocked_sm90": PACKAGE / "blocked" / "csrc" / "blocked_sm90.cu",
    "blocked_fp8_sm90": PACKAGE / "blocked" / "csrc" / "blocked_fp8_sm90.cu",
    "gathered_sm90_cluster": PACKAGE / "gathered" / "csrc" / "gathered_sm90_cluster.cu",
    "gathered_sm90_persistent": PACKAGE / "gathered" / "csrc" / "gathered_sm90_persistent.cu",
    "gathered_indexed": PACKAGE / "gathered" / "csrc" / "gathered_indexed.cu",
    "gathered_simt": PACKAGE / "gathered" / "csrc" / "gathered_simt.cu",
    "gathered_small_m": PACKAGE / "gathered" / "csrc" / "gathered_small_m.cu",
    "csr_sm90": PACKAGE / "csr" / "csrc" / "csr_sm90.cu",
    "ell_sm90": PACKAGE / "ell" / "csrc" / "ell_sm90.cu",
    "ell_small_m": PACKAGE / "ell" / "csrc" / "ell_small_m.cu",
    "layer_norm_columns": PACKAGE / "norm" / "csrc" / "layer_norm_columns.cu",
    "n_m_sm90": PACKAGE / "n_m" / "csrc" / "n_m_sm90.cu",
    "n_m_mma": PACKAGE / "n_m" / "csrc" / "n_m_mma.cu",
    "n_m_small_m": PACKAGE / "n_m" / "csrc" / "n_m_small_m.cu",
}
FLAGS = (
    "-std=c++17",
    "-O3",
    # sm_90a, since the warpgroup products exist there alone. The builder adds no architecture where a flag names one: a
    # plain sm_90 pass would reject them.
    "-gencode=arch=compute_90a,code=sm_90a",
    "-Xptxas=-v",
    "-lineinfo",  # tools name source lines; the machine code is the same
    "--split-compile=0",  # kernels of a source in parallel; the machine code is the same
    # the builder takes the arithmetic of 16-bit floats away from extensions; our sources mean CUDA's own
    "-U__CUDA_NO_HALF_OPERATORS__",
    "-U__CUDA_NO_HALF_CONVERSIONS__",
    "-U__CUDA_NO_HALF2_OPERATORS__",
    "-U__CUDA_NO_BFLOAT16_CONVERSIONS__",
)
LINK_FLAGS = ("-Wl,--as-needed",)  # of the libraries that the builder names, the CUDA runtime alone is needed
# the program of the builder's process; what the builder, ninja and nvcc say goes to its stdout and stderr
BUILDER = """
import json, sys
from torch.utils.cpp_extension import load
load(**json.loads(sys.argv[1]), with_cuda=True, is_python_module=False, verbose=True)
"""
PLACES = ("CUDA_HOME", "CUDA_PATH")
LOG = "build.log"

_failures: dict[str, str] = {}  # name -> why its build failed; this process does not try again


class BuildFailed(RuntimeError):
    """A library cannot be built. The message begins with the reason and contains the compiler's output."""


@functools.cache
def compiler() -> str | None:
    """Path of nvcc: from $CUDA_HOME or $CUDA_PATH, CUDA's usual folder, or the search path; None where there is none."""
    homes = [os.environ[name] for name in PLACES if os.environ.get(name)] + ["/usr/local/cuda"]
    in_homes = [found for home in homes if (found := shutil.which("nvcc", path=str(Path(home) / "bin")))]
    return in_homes[0] if in_homes else shutil.which("nvcc")


def ninja() -> str | None:
    """Path of ninja, which torch's builder runs: from the search path or from beside this Python, where pip puts it."""
    folders = [os.environ.get("PATH", os.defpath), str(Path(sys.executable).parent), sysconfig.get_path("scripts")]
    return shutil.which("ninja", path=os.pathsep.join(folders))


def unavailable_reason(name: str) -> str | None:
    """Why the library is unavailable, or None where it is built or can be. The reason is logged once."""
    if built(name) is not None:
        return None
    reason = _failures.get(name) or _missing_tool()
    if reason is not None:
        _warn_once(name, reason)
    return reason


def built(name: str) -> Path | None:
    """The library where it has been built from these sources: by the compiler that is here, or by any if there is none."""
    key = f"{name}-{_fingerprint(SOURCES[name])}-"
    folders = _cache().glob(f"{key}*") if compiler() is None else [_cache() / f"{key}{_compiler_key(compiler())}"]
    return next((path for folder in folders if (path := folder / f"{name}.so").exists()), None)


def build(name: str) -> Path:
    """Compile a source, unless it has been compiled before.

    Several processes may build at once: each does so in a fresh folder, which is renamed when it is complete. So a
    build that was killed leaves no lock, nor a broken library.

    Returns:
        the shared library; the compiler's messages are beside it, in `build.log`.
    Raises:
        BuildFailed: there is no nvcc or no ninja, the compiler rejected the source, or the cache cannot be written.
    """
    if (library := built(name)) is not None:
        return library
    if reason := _failures.get(name) or _missing_tool():
        raise BuildFailed(f"{name}: {reason}")
    home = _cache() / f"{name}-{_fingerprint(SOURCES[name])}-{_compiler_key(compiler())}"
    try:
        home.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BuildFailed(f"{name}: its folder in $SPARSEFRONT_KERNELS_CACHE cannot be made: {error}") from error
    with tempfile.TemporaryDirectory(prefix=f"building-{name}-", dir=home.parent, ignore_cleanup_errors=True) as around:
        folder = Path(around) / "library"
        folder.mkdir()
        done = _run_builder(name, folder)
        if done.returncode != 0 or not (folder / f"{name}.so").exists():
            _failures[name] = f"its build failed: {_first_error(done.stdout)}"
            raise BuildFailed(f"{name}: {_failures[name]}\n{done.stdout}")
        (folder / LOG).write_text(done.stdout, encoding="utf-8")
        try:
            folder.rename(home)
        except OSError:  # another process was faster; a folder that holds files is not replaced
            if not (home / f"{name}.so").exists():
                raise
    return home / f"{name}.so"


@functools.cache
def load(name: str) -> ctypes.CDLL:
    """The library, built where need be.

    Raises:
        BuildFailed: as `build`.
    """
    return ctypes.CDLL(str(build(name)))


def _run_builder(name: str, folder: Path) -> subprocess.CompletedProcess:
    """torch's builder in a process of its own: it takes the compiler from the environment, which stays as it is here."""
    nvcc, builder = compiler(), ninja()
    assert nvcc is not None and builder is not None, "_missing_tool comes before"
    tools = [str(Path(builder).parent), str(Path(nvcc).parent), os.environ.get("PATH", os.defpath)]
    settings = {
        "name": name,
        "sources": [str(SOURCES[name])],
        "extra_cuda_cflags": FLAGS,
        "extra_ldflags": LINK_FLAGS,
        "build_directory": str(folder),
    }
    return subprocess.run(
        # -P: the current folder, whose modules may have any name, stays off the import path
        [sys.executable, "-P", "-c", BUILDER, json.dumps(settings)],
        env=os.environ | {"CUDA_HOME": str(Path(nvcc).parent.parent), "PATH": os.pathsep.join(tools)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        encoding="utf-8",
    )


def _missing_tool() -> str | None:
    if torch.version.cuda is None:
        return "cannot be built: this PyTorch is one without CUDA"
    if compiler() is None:
        return (
            "needs CUDA's compiler nvcc to build (neither in $CUDA_HOME/bin, in /usr/local/cuda/bin, nor on the PATH)"
        )
    if ninja() is None:
        return "needs ninja to build (`pip install ninja`; it is neither on the PATH nor beside this Python)"
    return None


@functools.cache
def _warn_once(name: str, reason: str) -> None:
    log.warning("the CUDA library %s is not used, other kernels run instead: %s", name, reason)


def _first_error(output: str) -> str:
    """The line that says what went wrong, out of all that the builder and the compiler print."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    wanted = (
        line for pattern in (r"\berror:|cannot find -l", r"Error: ") for line in lines if re.search(pattern, line)
    )
    return next(wanted, lines[-1] if lines else "the builder printed nothing")


def _cache() -> Path:
    return Path(os.environ.get("SPARSEFRONT_KERNELS_CACHE") or Path.home() / ".cache" / "sparsefront_kernels")


def _fingerprint(source: Path) -> str:
    """Of all that a source may include, its neighbours and the shared headers; of the flags; of PyTorch, whose builder it is."""
    parts = [file.read_bytes() for folder in (source.parent, SHARED) for file in sorted(folder.glob("*.cu*"))]
    made_with = " ".join((torch.__version__, *FLAGS, *LINK_FLAGS))
    return hashlib.sha256(b"\0".join([*parts, made_with.encode()])).hexdigest()[:16]


@functools.cache
def _compiler_key(path: str) -> str:
    version = subprocess.run(
        [path, "--version"], capture_output=True, text=True, encoding="utf-8", errors="replace"
    ).stdout
    return hashlib.sha256(version.encode()).hexdigest()[:8]
