"""Launching the Hopper kernel, ../csrc/blocked_sm90.cu."""

import ctypes
import functools
from collections.abc import Sequence

import torch
from torch import Tensor

from sparsefront_kernels import cuda_library
from sparsefront_kernels.blocked.cuda.parameters import BlockedLaunch
from sparsefront_kernels.blocked.cuda.work import work_tensors
from sparsefront_kernels.common.epilogue import ACTIVATION_CODES
from sparsefront_kernels.common.wgmma_layout import is_halved
from sparsefront_kernels.gathered.sm90 import BIAS_TYPES, epilogue_arguments
from sparsefront_kernels.problem import Convolution

LIBRARY = "blocked_sm90"
_SIZES = ("n", "h", "w", "c")
_PAIRS = ("filter", "stride", "padding", "dilation", "out")  # vertical, then horizontal


class Images(ctypes.Structure):
    """`Images` of cuda/tensor_map.cuh: what a convolution reads."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        *((name, ctypes.c_int) for name in (*_SIZES, *(f"{pair}_{side}" for pair in _PAIRS for side in "hw"))),
    ]

    @classmethod
    def of(cls, x: Tensor, convolution: Convolution) -> "Images":
        """Of images [B, H, W, C], which must stay in memory until the kernel has been launched."""
        pairs = (
            convolution.kernel_size,
            convolution.stride,
            convolution.padding,
            convolution.dilation,
            convolution.output_size(x.shape[1], x.shape[2]),
        )
        return cls(x.data_ptr(), *x.shape, *(number for pair in pairs for number in pair))


def launch_blocked_sm90(
    x: Tensor,
    y: Tensor,
    *,
    panels: Tensor,
    k_blocks: Tensor,
    outputs: Tensor,
    lengths: Sequence[int],
    box: int,
    m: int,
    n: int,
    k: int,
    launch: BlockedLaunch,
    x_feature_major: bool,
    y_feature_major: bool,
    bias: Tensor | None = None,
    activation: str = "none",
    residual: Tensor | None = None,
    relu_last: bool = False,
    images: Images | None = None,
) -> None:
    """Write Y = activation(X · Wᵀ + bias) + residual on the current stream of x's device, which must be current.

    The sums are rounded to Y's dtype with the bias before the activation, and again where a residual is added.

    Args:
        x: [M, K], or [K, M] where x_feature_major, which boxes of 64 inputs alone may be; rows contiguous and each at 16 bytes.
        y: [M, N], or [N, M] where y_feature_major, likewise. Every element is written.
        panels ... lengths: those of `BlockedCudaWeight`.
        m, n, k: rows and columns that count, where rows of x or y are longer.
        bias: [N] contiguous, float16, bfloat16 or float32, or None.
        activation: a name of `common.epilogue.ACTIVATION_CODES`.
        residual: as y, or None.
        relu_last: whether what is written is max(0, ·) of that, where there is a residual.
        images: where given, x is their pixels, and X the rows that their output pixels see.
    Raises:
        RuntimeError: the launch failed.
    """
    work, begins, firsts = work_tensors(
        tuple(lengths), m, launch, lambda cluster: clusters_at_once(cluster, x.device), x.device
    )
    error = _library().sparsefront_blocked_sm90(
        *(tensor.data_ptr() for tensor in (x, panels, k_blocks, work, begins, firsts, outputs)),
        *epilogue_arguments(x, y, bias, residual),
        0 if bias is None else BIAS_TYPES[bias.dtype],
        ACTIVATION_CODES[activation],
        int(x_feature_major),
        int(not y_feature_major),
        int(x.dtype == torch.bfloat16),
        m,
        n,
        k,
        box,
        int(is_halved(panels)),
        launch.cluster,
        launch.splits,
        len(begins) - 1,
        int(launch.pdl),
        int(relu_last),
        None if images is None else ctypes.byref(images),
        torch.cuda.current_stream(x.device).cuda_stream,
    )
    if error:
        raise RuntimeError(f"{LIBRARY}: CUDA error {error} at launch")


@functools.cache
def clusters_at_once(cluster: int, device: torch.device) -> int:
    """How many clusters of this many blocks run at the same time.

    Raises:
        RuntimeError: the GPU does not say.
    """
    with torch.cuda.device(device):
        found = _library().sparsefront_blocked_sm90_clusters(cluster)
    if found <= 0:
        raise RuntimeError(f"{LIBRARY}: clusters of {cluster} blocks cannot run (CUDA error {-found})")
    return found


@functools.cache
def _library() -> ctypes.CDLL:
    library = cuda_library.load(LIBRARY)
    product, clusters = library.sparsefront_blocked_sm90, library.sparsefront_blocked_sm90_clusters
    product.argtypes = [ctypes.c_void_p] * 10 + [ctypes.c_longlong] * 3 + [ctypes.c_int] * 15 + [ctypes.c_void_p] * 2
    clusters.argtypes = [ctypes.c_int]
    product.restype = clusters.restype = ctypes.c_int
    return library
