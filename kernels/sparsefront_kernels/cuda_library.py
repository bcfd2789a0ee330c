"""CUDA sources become shared libraries: at first use, or ahead of time with `python -m sparsefront_kernels.build`.

A library has a C interface and is loaded with ctypes, so that it depends on no version of PyTorch or Python and builds
in seconds. It is kept in $SPARSEFRONT_KERNELS_CACHE (~/.cache/sparsefront_kernels where that is not set) under a
name that holds a hash of the sources, the flags and the compiler's version.
"""

import ctypes
import functools
import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

PACKAGE = Path(__file__).parent
SOURCES = {
    "gathered_spmm": PACKAGE / "gathered" / "cuda" / "gathered_spmm.cu",
    "gathered_fp32": PACKAGE / "gathered" / "cuda" / "gathered_fp32.cu",
}
# sm_90a, since the warpgroup products exist there alone. Not `-arch`: that runs a plain sm_90 pass too, which rejects them.
FLAGS = ("-std=c++17", "-O3", "-gencode=arch=compute_90a,code=sm_90a", "-shared", "-Xcompiler=-fPIC")
PLACES = ("CUDA_HOME", "CUDA_PATH")


class BuildFailed(RuntimeError):
    """nvcc is missing or refused a source; the message holds what it said."""


@functools.cache
def compiler() -> str | None:
    """Path of nvcc: from $CUDA_HOME or $CUDA_PATH, the search path, or CUDA's usual folder; None where there is none."""
    homes = [os.environ[name] for name in PLACES if os.environ.get(name)] + ["/usr/local/cuda"]
    in_homes = [found for home in homes if (found := shutil.which("nvcc", path=str(Path(home) / "bin")))]
    return (in_homes[:1] or [shutil.which("nvcc")])[0]


def refusal(name: str) -> str | None:
    """Why the library cannot be had, in words, or None. A library is known by its compiler too, so both are needed."""
    if compiler() is not None:
        return None
    return "needs CUDA's compiler nvcc to build (neither in $CUDA_HOME/bin, on the PATH, nor in /usr/local/cuda/bin)"


def build(name: str) -> Path:
    """Compile a source, unless it has been compiled before.

    Returns:
        the shared library.
    Raises:
        BuildFailed: there is no nvcc, or it failed.
    """
    if reason := refusal(name):
        raise BuildFailed(f"{name}: {reason}")
    source = SOURCES[name]
    library = _cache() / f"{name}-{_fingerprint(source)}.so"
    if library.exists():
        return library
    library.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(
        dir=library.parent
    ) as folder:  # renamed at the end: two processes may build at once
        made = Path(folder) / library.name
        done = subprocess.run([compiler(), *FLAGS, "-o", str(made), str(source)], capture_output=True, text=True)
        if done.returncode != 0:
            raise BuildFailed(f"{name}: nvcc failed\n{done.stdout}{done.stderr}")
        made.replace(library)
    return library


@functools.cache
def load(name: str) -> ctypes.CDLL:
    """The library, built where need be.

    Raises:
        BuildFailed: as `build`.
    """
    return ctypes.CDLL(str(build(name)))


def _cache() -> Path:
    return Path(os.environ.get("SPARSEFRONT_KERNELS_CACHE") or Path.home() / ".cache" / "sparsefront_kernels")


def _fingerprint(source: Path) -> str:
    """Of the whole folder of a source, since it includes its neighbours."""
    version = subprocess.run([compiler(), "--version"], capture_output=True, text=True).stdout
    parts = [file.read_bytes() for file in sorted(source.parent.glob("*.cu*"))]
    return hashlib.sha256(b"\0".join([*parts, version.encode(), " ".join(FLAGS).encode()])).hexdigest()[:16]
