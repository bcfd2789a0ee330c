"""Launch utilities: tile shapes, dependent launch, and functions of compiled libraries."""

import ctypes
import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import Field, dataclass, replace
from typing import Any, ClassVar, Protocol, TypeVar

import torch
from torch import Tensor

from sparsefront_kernels import cuda_library

RASTER_SWIZZLE_ROWS = 8  # rasterization swizzle: block rows of X shared by neighboring programs


@dataclass(frozen=True)
class LaunchShape:
    """Tile of Y per program (block_m × block_n), its k-block, warps and pipeline stages."""

    block_m: int
    block_n: int
    block_k: int
    num_warps: int
    num_stages: int


def launch_shape(*, m: int, block_n: int, column_blocks: int, dtype: torch.dtype, device: torch.device) -> LaunchShape:
    """Choose the launch for `column_blocks` tiles of block_n outputs over m rows."""
    block_m = rows_of_block(m, column_blocks, num_sms(device))
    # 16-bit: the buffers of four stages of 128 × 64 fit into the 99 KiB of sm_89. float32 uses the CUDA cores, where a longer
    # k-block only costs registers.
    block_k = 16 if dtype == torch.float32 else 64
    num_warps = 8 if block_m * block_n >= 128 * 128 else 4
    return LaunchShape(block_m, block_n, block_k, num_warps, num_stages=4)


def rows_of_block(m: int, column_blocks: int, num_sms: int) -> int:
    """Starts at 128 and halves while half of it still covers m, or while the grid leaves SMs idle."""
    block_m = 128
    while block_m > 16 and block_m >= 2 * m:
        block_m //= 2
    while block_m > 32 and -(-m // block_m) * column_blocks < num_sms:
        block_m //= 2
    return block_m


def power_of_two_within(size: int, *, lowest: int, highest: int) -> int:
    """`size` rounded up to a power of two, clamped to two powers of two; tl.dot needs at least 16 in every dimension."""
    return max(lowest, min(highest, 1 << (size - 1).bit_length()))


@functools.cache
def num_sms(device: torch.device) -> int:
    """Number of streaming multiprocessors; 1 in the interpreter, where few large programs are faster."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


@dataclass(frozen=True)
class GpuLimits:
    """What launches a GPU takes; the default is an H200.

    Args:
        block_bytes: most shared memory of a block.
        clusters: whether blocks form clusters, from compute capability 9.0 on.
    """

    block_bytes: int = 232_448
    clusters: bool = True

    @property
    def sm_bytes(self) -> int:
        """Shared memory of an SM; the driver keeps a part for each block."""
        return self.block_bytes + 1_024

    def resident(self, blocks: int) -> int:
        """How many of so many blocks that share an SM of an H200 have room here; one at least."""
        return blocks if self.block_bytes >= HOPPER.block_bytes else 1


HOPPER = GpuLimits()


_BLOCK_BYTES = {(8, 0): 166_912, (8, 7): 166_912, (8, 6): 101_376, (8, 9): 101_376, (12, 0): 101_376, (12, 1): 101_376}


def find_gpu_limits(device: torch.device) -> GpuLimits:
    """Limits of a device; elsewhere than on a GPU an H200's."""
    if torch.device(device).type != "cuda" or not torch.cuda.is_available():
        return HOPPER
    capability = torch.cuda.get_device_capability(device)
    return GpuLimits(_BLOCK_BYTES.get(capability, HOPPER.block_bytes), clusters=capability >= (9, 0))


gpu_limits = functools.cache(find_gpu_limits)  # for every call of a kernel


@functools.cache
def supports_pdl(device: torch.device) -> bool:
    """Whether the GPU supports programmatic dependent launch (PDL)."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)


DEPENDENT_LAUNCH = ("off", "early", "late")  # codes of cuda/streams.cuh
TYPE_CODES = {torch.float32: 1, torch.float16: 2, torch.bfloat16: 3}  # in arguments of CUDA kernels; 0: no bias


class DependentLaunch(Protocol):
    """An ordered dataclass of launch parameters."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    @property
    def dependent_launch(self) -> str: ...

    def __lt__(self, other: Any, /) -> bool: ...


Launch = TypeVar("Launch", bound=DependentLaunch)


def best_first(launches: Sequence[Launch], predicted: Callable[[Launch], float], most: int) -> list[Launch]:
    """At most `most` launches, best predicted first; the first few also with the other modes of dependent launch."""
    best = sorted(launches, key=lambda launch: (predicted(launch), launch))[:most]
    others = [replace(launch, dependent_launch=way) for launch in best[:2] for way in ("early", "off")]
    return (best[: most - len(others)] + others)[:most] if most > len(others) else best[:most]


def was_read_before(*parts: Tensor) -> bool:
    """Whether an earlier launch read these parts of a packed weight as they are now.

    No kernel that still runs writes them then, so that a kernel which is launched early may read them before it waits.
    """
    storage = parts[0].untyped_storage()
    now = (parts[0].data_ptr(), *(0 if part.is_inference() else part._version for part in parts))
    before, storage._read_as = getattr(storage, "_read_as", None), now  # type: ignore[attr-defined]
    return now == before


def argument_fields(pointers: Iterable[str], strides: Iterable[str], numbers: Iterable[str]) -> list[tuple[str, Any]]:
    """`_fields_` of a structure of arguments, as CUDA sources declare them: addresses, strides in elements, numbers."""
    return [
        *((name, ctypes.c_void_p) for name in pointers),
        *((name, ctypes.c_longlong) for name in strides),
        *((name, ctypes.c_int) for name in numbers),
    ]


def address(tensor: Tensor | None) -> int | None:
    """Address of a tensor's first element."""
    return None if tensor is None else tensor.data_ptr()


def launch_with(kernel: str, arguments: ctypes.Structure, device: torch.device, launch: Any = "") -> None:
    """Call `sparsefront_<kernel>(arguments, stream)` on the device's current stream; builds its library if necessary.

    Args:
        launch: launch parameters, for the message.
    Raises:
        RuntimeError: the launch failed.
    """
    stream = torch.cuda.current_stream(device).cuda_stream
    _require_launched(
        kernel, _function(kernel, kernel, (ctypes.c_void_p,) * 2)(ctypes.byref(arguments), stream), launch
    )


def launch_kernel(
    kernel: str,
    device: torch.device,
    pointers: Sequence[Tensor | None],
    strides: Sequence[int],
    numbers: Sequence[int],
    launch: Any = "",
    *,
    library: str | None = None,
    images: tuple[ctypes.Structure | None, ...] = (),
) -> None:
    """As `launch_with`, for functions that take their arguments one by one: addresses, strides, numbers and a stream.

    Args:
        library: where it is not called as its kernel.
        images: a structure, or None, that the function takes before the stream.
    """
    types = (ctypes.c_void_p,) * len(pointers) + (ctypes.c_longlong,) * len(strides) + (ctypes.c_int,) * len(numbers)
    function = _function(library or kernel, kernel, types + (ctypes.c_void_p,) * (len(images) + 1))
    structures = [None if one is None else ctypes.byref(one) for one in images]
    stream = torch.cuda.current_stream(device).cuda_stream
    _require_launched(kernel, function(*map(address, pointers), *strides, *numbers, *structures, stream), launch)


def _require_launched(kernel: str, error: int, launch: Any) -> None:
    if error:
        raise RuntimeError(f"{kernel}: CUDA error {error} at launch" + (f" ({launch})" if launch else ""))


@functools.cache
def _function(library: str, kernel: str, types: tuple[Any, ...]) -> Callable[..., int]:
    function = getattr(cuda_library.load(library), f"sparsefront_{kernel}")
    function.argtypes, function.restype = types, ctypes.c_int
    return function


@functools.cache
def clusters_at_once(library: str, cluster: int, device: torch.device) -> int:
    """Number of concurrent clusters with this many blocks.

    Raises:
        RuntimeError: the occupancy query failed.
    """
    with torch.cuda.device(device):
        clusters = _function(library, f"{library}_clusters", (ctypes.c_int,))(cluster)
    if clusters <= 0:
        raise RuntimeError(f"{library}: clusters of {cluster} blocks cannot run (CUDA error {-clusters})")
    return clusters
