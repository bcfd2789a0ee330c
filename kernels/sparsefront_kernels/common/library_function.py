"""The function of a library that is called with a structure of arguments and a stream."""

import ctypes
import functools
from collections.abc import Callable

from sparsefront_kernels import cuda_library


@functools.cache
def library_function(kernel: str, arguments: type[ctypes.Structure]) -> Callable[..., int]:
    """(pointer to arguments, stream) → cudaError_t, of the library that is named like its kernel; built where need be."""
    function = getattr(cuda_library.load(kernel), f"sparsefront_{kernel}")
    function.argtypes, function.restype = [ctypes.POINTER(arguments), ctypes.c_void_p], ctypes.c_int
    return function
