"""CUDA sources become shared libraries: at first use, or ahead of time with `python -m sparsefront_kernels.build`.

torch's extension builder compiles them, in a process of its own. A library has a C interface and
is opened with ctypes: it includes no header of PyTorch, builds in seconds, and a call of it costs a microsecond or two.

Each is kept in a folder of $SPARSEFRONT_KERNELS_CACHE (~/.cache/sparsefront_kernels where that is not set), whose name
holds a hash of the sources, the flags and PyTorch's version, and one of the compiler's version. The folder also holds
what the compiler said: registers, spills and warnings of every kernel. A lock beside it lets one process build it while
others wait.

A wheel may bring libraries of its own in `prebuilt`, which count before all others as long as the sources are the same.
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
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path

import torch

from sparsefront_kernels.common.file_lock import held_alone

log = logging.getLogger(__name__)
PACKAGE = Path(__file__).parent
SHARED = PACKAGE / "cuda"  # headers that the families' sources include
PREBUILT = PACKAGE / "prebuilt"  # libraries of a wheel, by `_prebuilt_name`
TOOLCHAIN = "toolchain"  # a small library that says whether others can be built
SOURCES = {
    "blocked_sm90": PACKAGE / "blocked" / "csrc" / "blocked_sm90.cu",
    "blocked_training_sm90": PACKAGE / "blocked" / "csrc" / "blocked_training_sm90.cu",
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
    "layer_norm_rows": PACKAGE / "norm" / "csrc" / "layer_norm_rows.cu",
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
# of libraries for other machines: nvcc alone makes them, with the CUDA runtime inside
PREBUILT_FLAGS = (
    *FLAGS,
    "-shared",
    "-cudart=static",
    "-Xcompiler=-fPIC",
    "-Xlinker=--as-needed",
    "-Xlinker=--exclude-libs=ALL",  # the runtime inside serves this library alone, whichever one PyTorch has loaded
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

_gate: Callable[[str], AbstractContextManager[str | None]] | None = None  # see `gated`
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
    reason = _failures.get(name) or _missing_tool() or _toolchain_reason()
    if reason is not None:
        _warn_once(name, reason)
    return reason


def built(name: str) -> Path | None:
    """The library of these sources: one that came with the package, or one built by the compiler that is here, or by any
    where there is none."""
    if (library := _prebuilt(name)) is not None:
        return library
    key = f"{name}-{_fingerprint(_source(name))}-"
    folders = _cache().glob(f"{key}*") if compiler() is None else [_cache() / f"{key}{_compiler_key(compiler())}"]
    return next((path for folder in folders if (path := folder / f"{name}.so").exists()), None)


def build(name: str) -> Path:
    """Compile a source, unless it has been compiled before.

    Of several processes that ask at once, one builds and the others wait for its library, or for its failure. It builds in
    a fresh folder, which is renamed when it is complete: a build that was killed leaves no broken library, and the next
    process builds instead.

    Returns:
        the shared library; the compiler's messages are beside it, in `build.log`.
    Raises:
        BuildFailed: there is no nvcc or no ninja, the compiler rejected the source, or the cache cannot be written.
    """
    if (library := built(name)) is not None:
        return library
    if reason := _failures.get(name) or _missing_tool():
        raise BuildFailed(f"{name}: {reason}")
    with nullcontext() if _gate is None else _gate(name) as not_now:
        if not_now is not None:
            raise BuildFailed(f"{name}: {not_now}")
        return _built_once(name)


def _built_once(name: str) -> Path:
    home = _cache() / f"{name}-{_fingerprint(_source(name))}-{_compiler_key(compiler())}"
    lock = home.with_name(f"{home.name}.lock")
    try:
        home.parent.mkdir(parents=True, exist_ok=True)
        with held_alone(lock) as waited:
            if (library := built(name)) is not None:
                return library
            failure = lock.read_text(encoding="utf-8") if waited else ""
            if not failure:
                failure = _build_into(home, name)
                with suppress(OSError):  # another user's
                    lock.write_text(failure, encoding="utf-8")
    except OSError as error:
        raise BuildFailed(f"{name}: its folder in $SPARSEFRONT_KERNELS_CACHE cannot be written: {error}") from error
    if failure:
        _failures[name] = f"its build failed: {_first_error(failure)}"
        raise BuildFailed(f"{name}: {_failures[name]}\n{failure}")
    return home / f"{name}.so"


@contextmanager
def gated(gate: Callable[[str], AbstractContextManager[str | None]]) -> Iterator[None]:
    """Inside, each build runs within `gate(name)`, which gives None, or why it may not begin: it then raises BuildFailed."""
    global _gate
    before, _gate = _gate, gate
    try:
        yield
    finally:
        _gate = before


def _build_into(home: Path, name: str) -> str:
    """Make the library's folder; what the compiler said where that failed, else nothing."""
    with tempfile.TemporaryDirectory(prefix=f"building-{name}-", dir=home.parent, ignore_cleanup_errors=True) as around:
        folder = Path(around) / "library"
        folder.mkdir()
        done = _run_builder(name, folder)
        if done.returncode != 0 or not (folder / f"{name}.so").exists():
            return done.stdout or "the builder printed nothing"
        (folder / LOG).write_text(done.stdout, encoding="utf-8")
        try:
            folder.rename(home)
        except OSError:  # on a disk without locks another process was faster; a folder that holds files is not replaced
            if not (home / f"{name}.so").exists():
                raise
    return ""


def build_for_wheel(name: str) -> Path:
    """Compile a source into `PREBUILT`, from where a wheel of the package takes it to machines without nvcc.

    Raises:
        BuildFailed: there is no nvcc, or it rejected the source.
    """
    if (nvcc := compiler()) is None:
        raise BuildFailed(f"{name}: {_missing_tool()}")
    PREBUILT.mkdir(exist_ok=True)
    library = PREBUILT / _prebuilt_name(name, _compiler_version(nvcc))
    done = subprocess.run(
        [nvcc, *PREBUILT_FLAGS, str(_source(name)), "-o", str(partial := library.with_suffix(".partial"))],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        encoding="utf-8",
    )
    if done.returncode != 0:
        raise BuildFailed(f"{name}: its build failed: {_first_error(done.stdout)}\n{done.stdout}")
    for other in PREBUILT.glob(f"{name}-*.so"):  # of other sources
        other.unlink()
    return partial.rename(library)


def _prebuilt_name(name: str, cuda: str) -> str:
    """It holds a hash of the sources and flags, and CUDA's major version ("13.0" → 13)."""
    return f"{name}-{_digest(_source(name), *PREBUILT_FLAGS)}-cuda{cuda.split('.')[0]}.so"


def _prebuilt(name: str) -> Path | None:
    """The library that came with the package; it needs a driver of its CUDA version, as this PyTorch then does."""
    if torch.version.cuda is None or not PREBUILT.is_dir():
        return None
    library = PREBUILT / _prebuilt_name(name, torch.version.cuda)
    return library if library.exists() else None


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
        "sources": [str(_source(name))],
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


def _toolchain_reason() -> str | None:
    """Why the compiler that is here makes no libraries that open, as a small one shows that uses what all use."""
    try:
        load(TOOLCHAIN)
    except (BuildFailed, OSError) as error:
        return f"cannot be built here, as a trial shows: {str(error).splitlines()[0].removeprefix(f'{TOOLCHAIN}: ')}"
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


def _source(name: str) -> Path:
    return SHARED / f"{TOOLCHAIN}.cu" if name == TOOLCHAIN else SOURCES[name]


def _fingerprint(source: Path) -> str:
    """Of all that a source may include and the flags; of PyTorch, whose builder it is."""
    return _digest(source, torch.__version__, *FLAGS, *LINK_FLAGS)


def _digest(source: Path, *made_with: str) -> str:
    """Of all that a source may include, its neighbours and the shared headers, and of what it is made with."""
    parts = [file.read_bytes() for folder in (source.parent, SHARED) for file in sorted(folder.glob("*.cu*"))]
    return hashlib.sha256(b"\0".join([*parts, " ".join(made_with).encode()])).hexdigest()[:16]


@functools.cache
def _compiler_key(path: str) -> str:
    return hashlib.sha256(_compiler_says(path).encode()).hexdigest()[:8]


def _compiler_version(path: str) -> str:
    """Of CUDA, "13.0"."""
    found = re.search(r"release (\d+\.\d+)", _compiler_says(path))
    return found[1] if found else "unknown"


def _compiler_says(path: str) -> str:
    """Its version, in its words."""
    return subprocess.run(
        [path, "--version"], capture_output=True, text=True, encoding="utf-8", errors="replace"
    ).stdout
