"""Build CUDA sources into shared libraries: side by side with `build_missing`, or one on its first use.

torch's extension builder compiles them in a separate process. A library has a C interface and is loaded with ctypes: it
includes no PyTorch headers, builds in seconds, and a call costs a microsecond or two.

Each library has a folder in $SPARSEFRONT_KERNELS_CACHE (default ~/.cache/sparsefront_kernels), named by a hash of sources,
flags and PyTorch's version, and one of the compiler's version. The folder also contains the compiler's output: registers,
spills and warnings of every kernel. With a lock next to it, one process builds while others wait. Where that folder cannot
be written, a process builds for itself alone.

Sources with wgmma are compiled for compute capability 9.0, others for the GPUs of this machine, from 8.0 on. A wheel may contain
libraries in `prebuilt`, which take precedence as long as the sources are the same and these GPUs run them.
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
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path

import torch

from sparsefront_kernels.file_lock import held_alone

log = logging.getLogger(__name__)
PACKAGE = Path(__file__).parent
SHARED = PACKAGE / "cuda"  # shared headers
PREBUILT = PACKAGE / "prebuilt"  # a wheel's libraries, named by `_prebuilt_name`
TOOLCHAIN = "toolchain"  # a small library that tests whether others can be built
SOURCES = {source.stem: source for source in sorted(PACKAGE.glob("*/csrc/*.cu"))}
HOPPER = "90a"  # with wgmma and registers that move between warps, unlike 90
WGMMA = {name for name, source in SOURCES.items() if source.parent.parent.name == "blocked"} | {
    "gathered_sm90_cluster",
    "gathered_sm90_persistent",
    TOOLCHAIN,
}
LARGE_BLOCKS = {"layer_norm_columns"}  # with clusters and 227 KB of shared memory
ARCHITECTURES = ("80", "89", HOPPER, "100", "120")  # of a wheel
FLAGS = (
    "-std=c++17",
    "-O3",
    "-Xptxas=-v",
    "-lineinfo",  # source lines for tools; does not change machine code
    "--split-compile=0",  # compile kernels of a source in parallel; does not change machine code
    # the builder disables CUDA's 16-bit float operators for extensions; our sources use them
    "-U__CUDA_NO_HALF_OPERATORS__",
    "-U__CUDA_NO_HALF_CONVERSIONS__",
    "-U__CUDA_NO_HALF2_OPERATORS__",
    "-U__CUDA_NO_BFLOAT16_CONVERSIONS__",
)
# for libraries for other machines: built by nvcc alone, with the CUDA runtime linked statically
PREBUILT_FLAGS = (
    "-shared",
    "-cudart=static",
    "-Xcompiler=-fPIC",
    "-Xlinker=--as-needed",
    "-Xlinker=--exclude-libs=ALL",  # hide the static runtime from the one that PyTorch has loaded
)
LINK_FLAGS = ("-Wl,--as-needed",)  # of the libraries that the builder links, only the CUDA runtime is needed
# the program of the builder process; output of builder, ninja and nvcc goes to its stdout and stderr
BUILDER = """
import json, sys
from torch.utils.cpp_extension import load
load(**json.loads(sys.argv[1]), with_cuda=True, is_python_module=False, verbose=True)
"""
PLACES = ("CUDA_HOME", "CUDA_PATH")
KERNELS = "SPARSEFRONT_KERNELS"  # environment variable
LOG = "build.log"

# see `during_builds`
_tell: Callable[[str], None] = log.info
_around: Callable[[], AbstractContextManager[None]] = nullcontext
_needed: set[str] | None = None  # see `recording_needs`
_failures: dict[str, str] = {}  # name -> why its build failed; not retried in this process
_folders = threading.Lock()
_unwritable: set[Path] = set()  # folders that were reported


class BuildFailed(RuntimeError):
    """A library cannot be built. The message begins with the reason and includes the compiler's output."""


def find_needed_capability(name: str, capability: tuple[int, int]) -> str | None:
    """What a GPU of this compute capability lacks for a library, or None."""
    if capability < (8, 0):
        return "needs compute capability 8.0 or newer"
    if name in WGMMA and capability != (9, 0):
        return "needs wgmma, which compute capability 9.0 alone has"
    if name in LARGE_BLOCKS and capability[0] not in (9, 10, 11):
        return "needs clusters and 227 KB of shared memory per block"
    return None


@functools.cache
def gpu_architectures() -> tuple[str, ...]:
    """Architectures of this machine's GPUs, as nvcc calls them ("80", "90a"); without a GPU Hopper's."""
    devices = range(torch.cuda.device_count()) if torch.cuda.is_available() else ()
    capabilities = sorted({torch.cuda.get_device_capability(device) for device in devices} or {(9, 0)})
    return tuple(HOPPER if capability == (9, 0) else "{}{}".format(*capability) for capability in capabilities)


def runs_on(name: str, architectures: Sequence[str]) -> tuple[str, ...]:
    """Those of the architectures that can run a library."""
    return tuple(one for one in architectures if find_needed_capability(name, divmod(int(one.rstrip("a")), 10)) is None)


def _flags(name: str, architectures: Sequence[str]) -> tuple[str, ...]:
    """The builder adds no architecture of its own if a flag names one."""
    targets = runs_on(name, architectures) or (HOPPER,)
    return (*FLAGS, *(f"-gencode=arch=compute_{one},code=sm_{one}" for one in targets))


@functools.cache
def compiler() -> str | None:
    """Path of nvcc: from $CUDA_HOME or $CUDA_PATH, CUDA's default folder, or PATH; None if not found."""
    homes = [os.environ[name] for name in PLACES if os.environ.get(name)] + ["/usr/local/cuda"]
    in_homes = [nvcc for home in homes if (nvcc := shutil.which("nvcc", path=str(Path(home) / "bin")))]
    return in_homes[0] if in_homes else shutil.which("nvcc")


def ninja() -> str | None:
    """Path of ninja for torch's builder: from PATH, or next to this Python, where pip installs it."""
    folders = [os.environ.get("PATH", os.defpath), str(Path(sys.executable).parent), sysconfig.get_path("scripts")]
    return shutil.which("ninja", path=os.pathsep.join(folders))


def triton_alone() -> bool:
    """Whether SPARSEFRONT_KERNELS=triton leaves out all kernels that GPUs before Hopper lack, to time what they would run.

    Raises:
        ValueError: any other value.
    """
    value = os.environ.get(KERNELS, "")
    if value not in ("", "triton"):
        raise ValueError(f"{KERNELS}={value}: is triton, or unset for all kernels")
    return value == "triton"


def unavailable_reason(name: str) -> str | None:
    """Why the library is unavailable, or None if it is built or can be. Logs the reason once."""
    if triton_alone():
        return f"{KERNELS}=triton leaves CUDA libraries out"
    if _needed is not None:
        _needed.add(name)
        return None
    if built(name) is not None:
        return None
    reason = _missing_tool() or _toolchain_reason()
    if reason is not None:
        _warn_once(f"no CUDA library can be built, other kernels run instead: {reason}")
    elif (reason := _failures.get(name)) is not None:
        _warn_once(f"the CUDA library {name} is not used, other kernels run instead: {reason}")
    return reason


def availability() -> str:
    """What decides which libraries can be used: the compiler, or without one those that are built."""
    if triton_alone():
        return "none"
    reason = _missing_tool()
    if reason is None:
        return f"compiled by {compiler()}"
    return f"{reason}; there are {[name for name in SOURCES if built(name) is not None]}"


def any_failed() -> bool:
    """Whether a build failed in this process, so that another one may have more libraries."""
    return bool(_failures)


@contextmanager
def recording_needs() -> Iterator[set[str]]:
    """Context in which `unavailable_reason` answers None and adds the name to the yielded set; nothing is built. Not
    thread-safe.
    """
    global _needed
    before, _needed = _needed, set()
    try:
        yield _needed
    finally:
        _needed = before


def built(name: str) -> Path | None:
    """The library of these sources: from the package, or built by the current compiler (by any, if there is none)."""
    library = _prebuilt(name)
    if library is not None:
        return library
    key = f"{name}-{_fingerprint(name)}-{'*' if compiler() is None else _compiler_key(compiler())}"
    caches = [_cache()] + ([Path(_own_cache().name)] if _own_cache.cache_info().currsize else [])
    return next((path for cache in caches for path in cache.glob(f"{key}/{name}.so")), None)


def build(name: str) -> Path:
    """Compile a source, if necessary.

    If several processes need it, one builds and the others wait for its library, or its failure. It builds in a new folder that
    is renamed when complete, so that a killed build leaves no broken library and the next process can build.

    Returns:
        the shared library; the compiler's output is next to it in `build.log`.
    Raises:
        BuildFailed: nvcc or ninja is missing, the compiler rejected the source, or no folder is writable.
    """
    library = built(name)
    if library is not None:
        return library
    reason = _failures.get(name) or _missing_tool()
    if reason:
        raise BuildFailed(f"{name}: {reason}")
    with _reported([name]):
        return _build_once(name)


def build_missing(names: Iterable[str]) -> dict[str, str]:
    """Compile those of the sources that have no library, side by side: nvcc uses few cores for much of its time.

    Returns:
        name -> why it has no library, in a line; empty if all have one.
    """
    missing = [name for name in dict.fromkeys([TOOLCHAIN, *names]) if built(name) is None]
    if missing == [TOOLCHAIN]:
        return {}
    reason = _missing_tool()
    if reason is not None:
        return dict.fromkeys(missing[1:], reason)
    to_build = [name for name in missing if name not in _failures]
    if to_build:
        with _reported(to_build), ThreadPoolExecutor(len(to_build)) as pool:
            list(pool.map(_try_to_build, to_build))
    return {name: _failures[name] for name in missing if name in _failures}


def _try_to_build(name: str) -> None:
    with suppress(BuildFailed):  # `_failures` has the reason
        _build_once(name)


@contextmanager
def during_builds(
    tell: Callable[[str], None], around: Callable[[], AbstractContextManager[None]] = nullcontext
) -> Iterator[None]:
    """Context in which builds report their progress to `tell`, a line each, and run inside `around()`. Not thread-safe."""
    global _tell, _around
    before, (_tell, _around) = (_tell, _around), (tell, around)
    try:
        yield
    finally:
        _tell, _around = before


@contextmanager
def _reported(names: Sequence[str]) -> Iterator[None]:
    what = f"{len(names)} CUDA {'library' if len(names) == 1 else 'libraries'}"
    start = time.monotonic()
    with _around():
        _tell(f"building {what} with nvcc, once on this machine: {', '.join(names)}")
        yield
    _tell(f"{what} built in {time.monotonic() - start:.0f} s")


def _build_once(name: str) -> Path:
    try:
        return _build_in(_cache(), name)
    except OSError as error:
        try:
            with _folders:  # one for all threads
                own = Path(_own_cache().name)
                report_unwritable_cache(error)
            return _build_in(own, name)
        except OSError:
            _failures[name] = f"its folder in $SPARSEFRONT_KERNELS_CACHE cannot be written: {error}"
            raise BuildFailed(f"{name}: {_failures[name]}") from error


def report_unwritable_cache(error: OSError) -> None:
    """Log once that nothing is kept in the cache's folder."""
    folder = _cache()
    if folder not in _unwritable:
        _unwritable.add(folder)
        what = "CUDA libraries, launches and times are for this process alone"
        log.warning("%s, $SPARSEFRONT_KERNELS_CACHE=%s cannot be written: %s", what, folder, error.strerror)


def _build_in(cache: Path, name: str) -> Path:
    """Raises OSError if the cache is not writable, BuildFailed if the build fails."""
    home = cache / f"{name}-{_fingerprint(name)}-{_compiler_key(compiler())}"
    lock = home.with_name(f"{home.name}.lock")
    home.parent.mkdir(parents=True, exist_ok=True)
    with held_alone(lock, lambda: _tell(f"another process builds {name}: waiting for it")) as waited:
        library = built(name)
        if library is not None:
            return library
        failure = lock.read_text(encoding="utf-8") if waited else ""
        if not failure:
            failure = _build_into(home, name)
            with suppress(OSError):  # another user's
                lock.write_text(failure, encoding="utf-8")
    if failure:
        _failures[name] = f"its build failed: {_first_error(failure)}"
        raise BuildFailed(f"{name}: {_failures[name]}\n{failure}")
    return home / f"{name}.so"


def _build_into(home: Path, name: str) -> str:
    """Build the library's folder; returns the compiler's output on failure, else an empty string."""
    with tempfile.TemporaryDirectory(prefix=f"building-{name}-", dir=home.parent, ignore_cleanup_errors=True) as around:
        folder = Path(around) / "library"
        folder.mkdir()
        done = _run_builder(name, folder)
        if done.returncode != 0 or not (folder / f"{name}.so").exists():
            return done.stdout or "the builder printed nothing"
        (folder / LOG).write_text(done.stdout, encoding="utf-8")
        try:
            folder.rename(home)
        except OSError:  # without locks another process may have been faster; nonempty folders are not replaced
            if not (home / f"{name}.so").exists():
                raise
    return ""


def build_for_wheel(name: str, architectures: Sequence[str] = ARCHITECTURES) -> Path:
    """Compile a source into `PREBUILT`, for wheels for machines without nvcc.

    Raises:
        BuildFailed: nvcc is missing, or rejected the source.
    """
    nvcc = compiler()
    if nvcc is None:
        raise BuildFailed(f"{name}: {_missing_tool()}")
    PREBUILT.mkdir(exist_ok=True)
    targets = "-".join(f"sm{one}" for one in runs_on(name, architectures))
    library = PREBUILT / f"{_prebuilt_prefix(name, _compiler_version(nvcc))}{targets}.so"
    partial = library.with_suffix(".partial")
    done = subprocess.run(
        [nvcc, *_flags(name, architectures), *PREBUILT_FLAGS, str(_source(name)), "-o", str(partial)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        encoding="utf-8",
    )
    if done.returncode != 0:
        raise BuildFailed(f"{name}: its build failed: {_first_error(done.stdout)}\n{done.stdout}")
    for other in PREBUILT.glob(f"{name}-*.so"):  # from other sources
        other.unlink()
    return partial.rename(library)


def _prebuilt_prefix(name: str, cuda: str) -> str:
    """Beginning of a file name: a hash of sources and flags, and CUDA's major version ("13.0" → 13); architectures follow."""
    return f"{name}-{_digest(_source(name), *FLAGS, *PREBUILT_FLAGS)}-cuda{cuda.split('.')[0]}-"


def _serves(compiled: Sequence[str], gpu: str) -> bool:
    """Whether code for these architectures runs on a GPU of another: the same, or an older one of its major version."""
    return gpu in compiled or any(one[:-1] == gpu[:-1] and one < gpu for one in compiled if one != HOPPER)


def _prebuilt(name: str) -> Path | None:
    """The library from the package; it needs a driver for its CUDA version, as this PyTorch does."""
    libraries = sorted(PREBUILT.glob(f"{name}-*.so"))
    if torch.version.cuda is None or not libraries:
        return None
    prefix, gpus = _prebuilt_prefix(name, torch.version.cuda), runs_on(name, gpu_architectures())
    for library in libraries:
        targets = library.stem.removeprefix(prefix).replace("sm", "").split("-")
        if library.name.startswith(prefix) and all(_serves(targets, gpu) for gpu in gpus):
            return library
    needs = f"{prefix[len(name) + 1 :]}sm{'-sm'.join(gpus)}"
    _warn_once(f"the package has {libraries[0].name}, this machine needs {needs}: the CUDA library is built")
    return None


@functools.cache
def load(name: str) -> ctypes.CDLL:
    """Load the library, building it if necessary.

    Raises:
        BuildFailed: as in `build`.
    """
    return ctypes.CDLL(str(build(name)))


def _run_builder(name: str, folder: Path) -> subprocess.CompletedProcess:
    """Run torch's builder in a separate process: it takes the compiler from environment variables, unchanged here."""
    nvcc, builder = compiler(), ninja()
    assert nvcc is not None and builder is not None, "_missing_tool comes before"
    tools = [str(Path(builder).parent), str(Path(nvcc).parent), os.environ.get("PATH", os.defpath)]
    settings = {
        "name": name,
        "sources": [str(_source(name))],
        "extra_cuda_cflags": _flags(name, gpu_architectures()),
        "extra_ldflags": LINK_FLAGS,
        "build_directory": str(folder),
    }
    return subprocess.run(
        # -P: keep the current folder, which may have modules of any name, off the import path
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
    """Why the current compiler makes no loadable libraries, tested with a small one that uses everything others use."""
    try:
        load(TOOLCHAIN)
    except (BuildFailed, OSError) as error:
        return f"cannot be built here, as a trial shows: {str(error).splitlines()[0].removeprefix(f'{TOOLCHAIN}: ')}"
    return None


@functools.cache
def _warn_once(message: str) -> None:
    log.warning(message)


def _first_error(output: str) -> str:
    """The line with the actual error, from the output of builder and compiler."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    error_lines = (
        line for pattern in (r"\berror:|cannot find -l", r"Error: ") for line in lines if re.search(pattern, line)
    )
    return next(error_lines, lines[-1] if lines else "the builder printed nothing")


def _cache() -> Path:
    return Path(os.environ.get("SPARSEFRONT_KERNELS_CACHE") or Path.home() / ".cache" / "sparsefront_kernels")


@functools.cache
def _own_cache() -> tempfile.TemporaryDirectory[str]:
    """A folder of this process, removed when it ends."""
    return tempfile.TemporaryDirectory(prefix="sparsefront-kernels-", ignore_cleanup_errors=True)


def _source(name: str) -> Path:
    return SHARED / f"{TOOLCHAIN}.cu" if name == TOOLCHAIN else SOURCES[name]


def _fingerprint(name: str) -> str:
    """Digest of everything that a source may include, of the flags, and of PyTorch, whose builder is used."""
    return _digest(_source(name), torch.__version__, *_flags(name, gpu_architectures()), *LINK_FLAGS)


def _digest(source: Path, *made_with: str) -> str:
    """Digest of everything that a source may include (its neighbors and shared headers), and of `made_with`."""
    parts = [file.read_bytes() for folder in (source.parent, SHARED) for file in sorted(folder.glob("*.cu*"))]
    return hashlib.sha256(b"\0".join([*parts, " ".join(made_with).encode()])).hexdigest()[:16]


@functools.cache
def _compiler_key(path: str) -> str:
    return hashlib.sha256(_compiler_says(path).encode()).hexdigest()[:8]


def _compiler_version(path: str) -> str:
    """CUDA's version, "13.0"."""
    release = re.search(r"release (\d+\.\d+)", _compiler_says(path))
    return release[1] if release else "unknown"


def _compiler_says(path: str) -> str:
    """The compiler's version output."""
    return subprocess.run(
        [path, "--version"], capture_output=True, text=True, encoding="utf-8", errors="replace"
    ).stdout
