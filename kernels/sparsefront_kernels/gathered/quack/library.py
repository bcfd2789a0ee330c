"""QuACK (package quack-kernels): whether it is there, and the one call that the product needs.

`gemm(A, B, out, cu_seqlens_k, A_idx)`: out[g] = A[:, A_idx[g's]] · B[g's], where group g's are the places from
cu_seqlens_k[g] to cu_seqlens_k[g + 1]. A is [M, K] with M contiguous, B [all kept, N] with N contiguous, out [groups, M, N]
with M contiguous. Source: Dao et al., QuACK 0.6.5, `quack/gemm_interface.py`.
"""

import functools
import importlib
import importlib.util
from dataclasses import dataclass
from types import ModuleType

import torch
from torch import Tensor

from sparsefront_kernels.common.device_support import cuda_unsupported_reason
from sparsefront_kernels.problem import Problem

EXTRA = "quack"  # of sparsefront: what installs it
CAPABILITY = (9, 0)
K_BLOCK = 64  # inputs of a k-block of its kernel in 16 bits: longer lists cost nothing up to the next multiple


@dataclass(frozen=True, order=True)
class QuackLaunch:
    """What of QuACK's configuration matters where A is gathered: the cluster is 1 along N, and the scheduler static.

    Args:
        tile_m, tile_n: of a block: rows of X, and outputs.
        pingpong: two warpgroups take turns with tiles, instead of sharing one.
        cluster_m: blocks, 1 or 2, that share the weights.
        longest_first: whether groups with many inputs begin first.
    """

    tile_m: int
    tile_n: int
    pingpong: bool
    cluster_m: int = 1
    longest_first: bool = True


def package_unavailable_reason() -> str | None:
    """Why QuACK cannot be imported, or None."""
    for module, package in (("quack", "quack-kernels"), ("cutlass", "nvidia-cutlass-dsl")):
        if importlib.util.find_spec(module) is None:
            return f"{package} is not installed: it comes with sparsefront's extra `{EXTRA}`"
    return _import_error()


def unsupported_reason(problem: Problem) -> str | None:
    """Why QuACK does not support a problem's dtype and device, or None."""
    if problem.dtype not in (torch.float16, torch.bfloat16):
        return f"takes float16 or bfloat16, not {problem.dtype}"
    if reason := cuda_unsupported_reason(problem, minimum_capability=CAPABILITY):
        return reason
    if (capability := torch.cuda.get_device_capability(problem.device)) != CAPABILITY:
        return "was tried on compute capability 9.0 alone, this GPU has {}.{}".format(*capability)
    return package_unavailable_reason()


def grouped_gemm(
    a: Tensor, b: Tensor, out: Tensor, *, offsets: Tensor, kept: Tensor, order: Tensor | None, launch: QuackLaunch
) -> None:
    """Write out on the current stream; the first call of a launch compiles for seconds.

    Args:
        a: [M, K], M contiguous and a multiple of 8, 16-byte aligned in every column.
        b: [all kept, N], contiguous; N a multiple of 8.
        out: [groups, M, N], M contiguous; of one dtype with a and b.
        offsets: int32 [groups + 1].
        kept: int32 [all kept], columns of a.
        order: int32 [groups], in which they begin; None: as they are.
    """
    gemm, config = _modules()
    chosen = config.GemmConfig(
        tile_m=launch.tile_m,
        tile_n=launch.tile_n,
        pingpong=launch.pingpong,
        is_dynamic_persistent=False,
        cluster_m=launch.cluster_m,
        cluster_n=1,
    )
    gemm.gemm_tuned.fn(a, b, out, cu_seqlens_k=offsets, A_idx=kept, batch_idx_permute=order, config=chosen)


@functools.cache
def _import_error() -> str | None:
    try:
        _modules()
    except Exception as error:  # of packages that do not fit together, in all the ways in which that shows
        return f"quack-kernels cannot be imported: {(str(error).splitlines() or [type(error).__name__])[0]}"
    return None


def _modules() -> tuple[ModuleType, ModuleType]:
    return importlib.import_module("quack.gemm_interface"), importlib.import_module("quack.gemm_config")
