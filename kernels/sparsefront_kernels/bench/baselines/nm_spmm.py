"""NM-SpMM with the same weight as our kernels, if that keeps n of every m inputs in vectors of 32 outputs.

X is feature-major and Y row-major, as its kernels require (A column-major, C row-major). nvcc compiles them, with our C
interface (`nm_spmm_launch.cu`), from the user's checkout.

Source: "NM-SpMM: Accelerating Matrix Multiplication Using N:M Sparsity with GPGPU", 2025; repository M-H482/NM-SpMM, of which
`include/` and `src/` are used. None of it is part of this package.
"""

import ctypes
import functools
import os
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from sparsefront_kernels import cuda_library
from sparsefront_kernels.bench.masks import DrawnWeight
from sparsefront_kernels.bench.problems import Setting, Shape
from sparsefront_kernels.bench.provider import Call, Provider, numbered, provider_of
from sparsefront_kernels.gathered.format import GatheredFormat, cut_into_cta_tiles

VECTOR = 32  # outputs that share their inputs; fixed by its kernels
# sparsity -> (inputs per window, inputs kept by a vector). Unpacked kernels load whole windows of 32; packed ones load, of
# windows of 64, the inputs that any vector of the block keeps.
WINDOWS = {0.5: (32, 16), 0.625: (32, 12), 0.75: (64, 16), 0.875: (64, 8)}
PACKED_WINDOW = 64


@dataclass(frozen=True, eq=False)
class NmSpmmPackedWeight:
    """Values, indices within windows, and for packed kernels the inputs that a block loads.

    Args:
        n, k: outputs and inputs of the weight.
        window, kept: every vector of 32 outputs keeps `kept` inputs of every `window`.
        values: float32 [K / window · kept, N]: the kept weights of an output in one column, by ascending input.
        index: int32 [N / tile_n, K / window · kept, tile_n / 32]: row in shared memory of each kept input, for each vector of
            a block: its position in the window, or for packed kernels among the window's `columns`.
        columns: int32, flat: [N / tile_n, K / window, window] plus one window, because kernels prefetch; the inputs of a
            window that any vector of the block keeps, ascending, then -1. None for unpacked kernels.
    """

    n: int
    k: int
    window: int
    kept: int
    values: Tensor
    index: Tensor
    columns: Tensor | None


def pack_for_nm_spmm(stored: GatheredFormat, tile_n: int) -> NmSpmmPackedWeight:
    """Pack the weight for a kernel with `tile_n` outputs per block (32, 64 or 128), on the format's device.

    Raises:
        ValueError: `tile_n` does not divide the outputs, outputs are not stored in order, tile sizes are not multiples of
            32, or the inputs kept per window do not match a compiled kernel.
    """
    (n, k), device = stored.shape, stored.device
    if stored.tile % VECTOR or n % tile_n:
        raise ValueError(
            f"NM-SpMM takes vectors of {VECTOR} outputs and multiples of {tile_n} of them, not {stored.tile} of {n}"
        )
    if not torch.equal(stored.output_index, torch.arange(n, dtype=torch.int32, device=device)):
        raise ValueError("NM-SpMM takes outputs in their own order, none left out")
    _, keeps = cut_into_cta_tiles(stored, VECTOR)  # [N / 32, K]
    window, kept_count = _window(keeps)
    vectors, windows, together = n // VECTOR, k // window, tile_n // VECTOR
    inputs = keeps.nonzero()[:, 1].view(vectors, -1)  # [N / 32, kept of a vector]
    rows = stored.to_dense().view(vectors, VECTOR, k)
    values = rows.gather(2, inputs[:, None].expand(-1, VECTOR, -1)).view(n, -1).t().contiguous()
    columns = None
    places = torch.arange(window, dtype=torch.int32, device=device).repeat(vectors, windows)  # [N / 32, K], of the rows
    if window == PACKED_WINDOW:
        needed = keeps.view(-1, together, windows, window).any(dim=1)  # [N / tile_n, windows, window]
        places = (needed.cumsum(2, dtype=torch.int32) - 1).view(-1, 1, k).expand(-1, together, -1).reshape(vectors, k)
        columns = _first(needed)
    index = places.gather(1, inputs).view(-1, together, inputs.shape[1]).transpose(1, 2).contiguous()
    return NmSpmmPackedWeight(n, k, window, kept_count, values, index, columns)


def _window(keeps: Tensor) -> tuple[int, int]:
    """The entry of `WINDOWS`; ValueError if the lists are not balanced accordingly."""
    vectors, k = keeps.shape
    sparsity = 1 - int(keeps.sum()) / keeps.numel()
    if sparsity not in WINDOWS:
        raise ValueError(
            f"NM-SpMM is compiled for sparsities of {', '.join(map(str, WINDOWS))}, the mask has {sparsity:.6g}"
        )
    window, kept_count = WINDOWS[sparsity]
    if k % window:
        raise ValueError(f"NM-SpMM takes {kept_count} of every {window} inputs, which do not divide K = {k}")
    counts = keeps.view(vectors, -1, window).sum(dim=2)
    if (wrong := (counts != kept_count).nonzero()).numel():
        vector, place = wrong[0].tolist()
        raise ValueError(
            f"NM-SpMM takes {kept_count} of every {window} inputs; vector {vector} keeps {int(counts[vector, place])} of those "
            f"from {place * window} on"
        )
    return window, kept_count


def _first(needed: Tensor) -> Tensor:
    """The needed positions of each window, ascending, then -1; flat, followed by a window of -1."""
    order = (~needed).to(torch.int8).argsort(dim=2, stable=True).to(torch.int32)
    there = torch.arange(needed.shape[2], device=needed.device) < needed.sum(dim=2, keepdim=True)
    columns = order.masked_fill(~there, -1).flatten()
    return torch.cat([columns, columns.new_full((needed.shape[2],), -1)])


CHECKOUT = "SPARSEFRONT_NMSPMM"  # environment variable with the folder of a checkout
INTERFACE = Path(__file__).parent / "nm_spmm_launch.cu"
KERNELS = ("kernel_32x32_4x4.cu", "kernel_32x64_8x4.cu", "kernel_64x64_8x8.cu", "kernel_64x128_8x8.cu")
READ = ("include/NM-SpMM.h", "include/ptx.h", *(f"src/{name}" for name in KERNELS))
FLAGS = ("-std=c++17", "-O3", "-shared", "-Xcompiler=-fPIC")
OLDEST = (8, 0)  # minimum compute capability, for asynchronous copies


@dataclass(frozen=True, order=True)
class NmSpmmLaunch:
    """One of its kernels.

    Args:
        tile_m, tile_n: rows of X and outputs per block.
        splits: blocks that share a tile's inputs and add to Y atomically, in varying order.
    """

    tile_m: int
    tile_n: int
    splits: int = 1


def unavailable_reason() -> str | None:
    """Why the library cannot be built, or None."""
    folder = os.environ.get(CHECKOUT)
    if not folder:
        return f"${CHECKOUT} does not name a checkout of M-H482/NM-SpMM"
    missing = [name for name in READ if not (Path(folder) / name).is_file()]
    if missing:
        return f"${CHECKOUT}={folder} is no checkout of M-H482/NM-SpMM: it lacks {', '.join(missing)}"
    if cuda_library.compiler() is None:
        return "CUDA's compiler nvcc is missing (neither in $CUDA_HOME/bin, in /usr/local/cuda/bin, nor on the PATH)"
    return None


@functools.cache
def load(capability: tuple[int, int]) -> ctypes.CDLL:
    """Load the library for a compute capability; the first call per process builds it in some ten seconds.

    Raises:
        RuntimeError: it cannot be built (gives the missing part, or the compiler's message), or the GPU is too old.
    """
    reason = unavailable_reason()
    if reason:
        raise RuntimeError(reason)
    if capability < OLDEST:
        raise RuntimeError("needs compute capability {}.{}, this GPU has {}.{}".format(*OLDEST, *capability))
    checkout, architecture = Path(os.environ[CHECKOUT]), "{}{}".format(*capability)
    with tempfile.TemporaryDirectory(prefix="nm_spmm-") as folder:
        library = Path(folder) / "nm_spmm.so"
        places = [f"-I{checkout / name}" for name in ("include", "src")]
        target = f"-gencode=arch=compute_{architecture},code=sm_{architecture}"
        command = [str(cuda_library.compiler()), *FLAGS, target, *places, str(INTERFACE), "-o", str(library)]
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", encoding="utf-8")
        if done.returncode != 0:
            raise RuntimeError(f"NM-SpMM does not compile: {done.stderr.strip() or done.stdout.strip()}")
        return ctypes.CDLL(str(library))


def launch_nm_spmm(x: Tensor, packed: NmSpmmPackedWeight, launch: NmSpmmLaunch) -> Tensor:
    """Y [M, N] = X[K, M]ᵀ · Wᵀ on the current stream; with splits, Y is zeroed first.

    Args:
        x: float32 [K, M] contiguous, on the device of the packed weight.
        packed: for `launch.tile_n`.
    Raises:
        RuntimeError: as in `load`, or the launch failed.
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


KERNEL = "nm_spmm"
FAMILY = "gathered"  # storage of the weight
LAYOUT = "feature_to_row"
TILES = ((32, 32), (32, 64), (64, 64), (64, 128))  # rows of X × outputs of a block: its four kernels
SPLITS = (1, 2, 4, 8)  # as in its own benchmark, which takes the fastest combination
LARGEST = 1 << 31  # maximum elements of X, W and Y, because offsets have 32 bits


def unsupported_reason(dtype_name: str, sparsity: float) -> str | None:
    """Why it is unsupported for any shape, or None."""
    if dtype_name != "fp32":
        return "NM-SpMM multiplies float32 alone, exactly"
    if sparsity not in WINDOWS:
        return f"NM-SpMM is compiled for sparsities of {', '.join(map(str, WINDOWS))}, not {sparsity:g}"
    return unavailable_reason()


def launches(shape: Shape, window: int, kept: int) -> list[NmSpmmLaunch]:
    """Every kernel whose tiles divide the product, with up to as many splits as there are windows.

    Excluded is tile 32 × 32 with 12 of 32: it copies 8 rows of weights at a time and overruns the stage's 12.

    Raises:
        ValueError: no kernel fits, or an offset exceeds 32 bits.
    """
    if max(shape.m * shape.k, shape.m * shape.n, shape.k * shape.n) >= LARGEST:
        raise ValueError(f"NM-SpMM counts elements in 32 bits, which {shape.m}x{shape.k}x{shape.n} exceeds")
    tiles = [
        (m, n) for m, n in TILES if shape.m % m == 0 and shape.n % n == 0 and not ((m, n) == TILES[0] and kept % 8)
    ]
    if not tiles:
        raise ValueError(f"NM-SpMM takes M and N that are multiples of 32, not M = {shape.m}, N = {shape.n}")
    splits = [splits for splits in SPLITS if splits <= shape.k // window]
    return [NmSpmmLaunch(*tile, count) for tile in tiles for count in splits]


def providers(setting: Setting, drawn: DrawnWeight) -> list[Provider]:
    """Every kernel that fits, with every number of splits; zeroing Y for splits is included in the time.

    Raises:
        ValueError: an unsupported shape or mask.
        RuntimeError: it cannot be built.
    """
    stored = drawn.stored[FAMILY]
    assert isinstance(stored, GatheredFormat)
    packed: dict[int, Callable[[int], NmSpmmPackedWeight]] = {}  # by tile_n, shared by its kernels

    def provider(launch: NmSpmmLaunch) -> Provider:
        if launch.tile_n not in packed:
            packed[launch.tile_n] = numbered(pack_for_nm_spmm(stored, launch.tile_n))

        def make(copy: int) -> Call:
            x, own = setting.x_in(LAYOUT, copy), packed[launch.tile_n](copy)
            return lambda: launch_nm_spmm(x, own, launch)

        return provider_of(
            setting,
            family="nm_spmm",
            kernel=KERNEL,
            layout=LAYOUT,
            weight_bytes=stored.nbytes,
            make=make,
            **drawn.columns,
        )

    variants = [provider(launch) for launch in launches(setting.shape, *WINDOWS[setting.sparsity])]
    load(torch.cuda.get_device_capability(setting.device))  # fail once if it cannot be built, not for every launch
    return variants
