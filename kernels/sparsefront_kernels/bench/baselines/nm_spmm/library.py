"""NM-SpMM's kernels as a library: nvcc compiles them, with a C interface of ours, from a checkout that the user names.

Source: "NM-SpMM: Accelerating Matrix Multiplication Using N:M Sparsity with GPGPU", 2025; repository M-H482/NM-SpMM, of which
`include/` and `src/` are read. Nothing of it is part of this package.
"""

import ctypes
import functools
import os
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from sparsefront_kernels import cuda_library
from sparsefront_kernels.bench.baselines.nm_spmm.packed_weight import NmSpmmPackedWeight

CHECKOUT = "SPARSEFRONT_NMSPMM"  # environment variable: folder of a checkout
INTERFACE = Path(__file__).parent / "launch.cu"
KERNELS = ("kernel_32x32_4x4.cu", "kernel_32x64_8x4.cu", "kernel_64x64_8x8.cu", "kernel_64x128_8x8.cu")
READ = ("include/NM-SpMM.h", "include/ptx.h", *(f"src/{name}" for name in KERNELS))
FLAGS = ("-std=c++17", "-O3", "-shared", "-Xcompiler=-fPIC")
OLDEST = (8, 0)  # compute capability that its asynchronous copies need


@dataclass(frozen=True, order=True)
class NmSpmmLaunch:
    """One of its kernels.

    Args:
        tile_m, tile_n: of a block: rows of X, and outputs.
        splits: blocks that share a tile's inputs and add to Y in no fixed order.
    """

    tile_m: int
    tile_n: int
    splits: int = 1


def unavailable_reason() -> str | None:
    """Why the library cannot be built, or None where nothing is missing."""
    folder = os.environ.get(CHECKOUT)
    if not folder:
        return f"${CHECKOUT} does not name a checkout of M-H482/NM-SpMM"
    if missing := [name for name in READ if not (Path(folder) / name).is_file()]:
        return f"${CHECKOUT}={folder} is no checkout of M-H482/NM-SpMM: it lacks {', '.join(missing)}"
    if cuda_library.compiler() is None:
        return "CUDA's compiler nvcc is missing (neither in $CUDA_HOME/bin, in /usr/local/cuda/bin, nor on the PATH)"
    return None


@functools.cache
def load(capability: tuple[int, int]) -> ctypes.CDLL:
    """The library for a compute capability; building it takes some ten seconds, once in a process.

    Raises:
        RuntimeError: it cannot be built (names what is missing, or what the compiler said), or the GPU is too old.
    """
    if reason := unavailable_reason():
        raise RuntimeError(reason)
    if capability < OLDEST:
        raise RuntimeError("needs compute capability {}.{}, this GPU has {}.{}".format(*OLDEST, *capability))
    checkout, architecture = Path(os.environ[CHECKOUT]), "{}{}".format(*capability)
    with tempfile.TemporaryDirectory(prefix="nm_spmm-") as folder:
        library = Path(folder) / "nm_spmm.so"
        places = [f"-I{checkout / name}" for name in ("include", "src")]
        target = f"-gencode=arch=compute_{architecture},code=sm_{architecture}"
        command = [str(cuda_library.compiler()), *FLAGS, target, *places, str(INTERFACE), "-o", str(library)]
        done = subprocess.run(command, capture_output=True, text=True, errors="replace")
        if done.returncode != 0:
            raise RuntimeError(f"NM-SpMM does not compile: {done.stderr.strip() or done.stdout.strip()}")
        return ctypes.CDLL(str(library))


def launch_nm_spmm(x: Tensor, packed: NmSpmmPackedWeight, launch: NmSpmmLaunch) -> Tensor:
    """Y [M, N] = X[K, M]ᵀ · Wᵀ on the current stream; where blocks share a tile, Y is filled with zeros first.

    Args:
        x: float32 [K, M] contiguous, on the device of the packed weight.
        packed: laid out for `launch.tile_n`.
    Raises:
        RuntimeError: as `load`, or the launch failed.
    """
    m = x.shape[1]
    y = (x.new_empty if launch.splits == 1 else x.new_zeros)(m, packed.n)
    error = _function(torch.cuda.get_device_capability(x.device))(
        x.data_ptr(),
        packed.values.data_ptr(),
        packed.index.data_ptr(),
        None if packed.columns is None else packed.columns.data_ptr(),
        y.data_ptr(),
        m,
        packed.n,
        packed.k,
        packed.window,
        packed.kept,
        launch.tile_m,
        launch.tile_n,
        launch.splits,
        torch.cuda.current_stream(x.device).cuda_stream,
    )
    if error:
        raise RuntimeError(f"NM-SpMM: CUDA error {error} at launch ({launch})")
    return y


@functools.cache
def _function(capability: tuple[int, int]) -> ctypes._CFuncPtr:
    function = load(capability).sparsefront_nm_spmm
    function.argtypes = [ctypes.c_void_p] * 5 + [ctypes.c_int] * 8 + [ctypes.c_void_p]
    function.restype = ctypes.c_int
    return function
