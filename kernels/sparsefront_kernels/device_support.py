"""Whether kernels support a device, and the reason if they do not."""

import functools
import importlib.util
import logging
import os

import torch

from sparsefront_kernels import cuda_library
from sparsefront_kernels.format import SparseFormat
from sparsefront_kernels.problem import Problem

log = logging.getLogger(__name__)
TRITON_DTYPES = (torch.float16, torch.bfloat16, torch.float32)


def triton_unsupported_reason(stored: SparseFormat, problem: Problem) -> str | None:
    """The reason shared by all Triton kernels: dtype, missing Triton, or neither a GPU nor the interpreter."""
    if problem.dtype not in TRITON_DTYPES:
        return f"takes float16, bfloat16 or float32, not {problem.dtype}"
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed"
    if problem.device.type == "cpu":
        return _interpreter_unsupported_reason(problem.dtype)
    if problem.device.type != "cuda":
        return f"needs a CUDA device, not {problem.device.type}"
    return cuda_unsupported_reason(problem, minimum_capability=(8, 0))


def cuda_unsupported_reason(problem: Problem, *, minimum_capability: tuple[int, int]) -> str | None:
    """Why the problem's device is not a suitable CUDA device, or None."""
    if problem.device.type != "cuda":
        return f"needs a CUDA device, not {problem.device.type}"
    if not torch.cuda.is_available():
        return "needs a CUDA device, and torch sees none"
    if minimum_capability >= (9, 0) and cuda_library.triton_alone():
        return f"{cuda_library.KERNELS}=triton leaves out what needs compute capability 9.0"
    capability = torch.cuda.get_device_capability(problem.device)
    if capability < minimum_capability:
        return "needs compute capability {}.{} or newer, this GPU has {}.{}".format(*minimum_capability, *capability)
    return None


def library_unsupported_reason(problem: Problem, library: str) -> str | None:
    """Why a CUDA library is unsupported on the problem's device, or None.

    Args:
        library: a name of `cuda_library.SOURCES`.
    """
    reason = cuda_unsupported_reason(problem, minimum_capability=(8, 0)) or _capability_reason(problem.device, library)
    return reason or cuda_library.unavailable_reason(library)


def _capability_reason(device: torch.device, library: str) -> str | None:
    capability = torch.cuda.get_device_capability(device)
    needed = cuda_library.find_needed_capability(library, capability)
    return None if needed is None else "{}, this GPU has {}.{}".format(needed, *capability)


@functools.cache
def unloadable_reason(device: torch.device, library: str) -> str | None:
    """Why a library cannot run on the device, or None; builds it, so that later calls do not fail."""
    if device.type != "cuda":
        return f"needs a CUDA device, not {device.type}"
    reason = _capability_reason(device, library) or cuda_library.unavailable_reason(library)
    if reason is not None:
        return reason
    try:
        cuda_library.load(library)
    except (cuda_library.BuildFailed, OSError) as error:
        reason = str(error).splitlines()[0]
        log.warning("the CUDA library %s is not used, other kernels run instead: %s", library, reason)
        return reason
    return None


def _interpreter_unsupported_reason(dtype: torch.dtype) -> str | None:
    """Why a CPU is unsupported, even with the interpreter, or None."""
    if os.environ.get("TRITON_INTERPRET") != "1":
        return "needs a CUDA device (on a CPU, TRITON_INTERPRET=1 runs it in Triton's slow interpreter, for tests)"
    # Triton decides when a kernel is decorated; this import decorates the first one, if none was yet
    from sparsefront_kernels.triton_device import INTERPRETED

    if not INTERPRETED:
        return "needs a CUDA device: TRITON_INTERPRET=1 was set after the kernels had been loaded"
    if dtype == torch.bfloat16:
        return "needs a CUDA device: Triton's interpreter multiplies bfloat16 wrongly"
    return None
