"""Tables that the host makes, on a device: complete before anyone reads them, and in no CUDA graph's memory.

A kernel finds its work in such tables, which are kept for later calls. So whatever the call that makes one is in, every stream
may read it at once, also while a CUDA graph is recorded or under `torch.compile(mode="reduce-overhead")`, whose graphs
use the memory again that was taken within them.
"""

import ctypes
import functools
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

_RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED


def on_device(table: Tensor, device: torch.device) -> Tensor:
    """A table of the host on a device, copied there when this returns.

    Args:
        table: on the CPU.
        device: where kernels will read it, on any stream.
    """
    return _copier().submit(_copied, table, device).result() if device.type == "cuda" else table.to(device)


def _copied(table: Tensor, device: torch.device) -> Tensor:
    stream = _stream(device)
    with torch.cuda.stream(stream):
        copy = table.to(device)
        stream.synchronize()
    return copy


@functools.cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


@functools.cache
def _copier() -> ThreadPoolExecutor:
    """A thread of its own: what it allocates is never the memory of a graph that another thread records or warms up."""
    return ThreadPoolExecutor(1, "sparsefront-tables", initializer=_allow_copies_during_captures)


def _allow_copies_during_captures() -> None:
    """In this thread, from now on: its stream is never captured, so that it disturbs no capture of another thread."""
    try:
        exchange = ctypes.CDLL("libcuda.so.1").cuThreadExchangeStreamCaptureMode
    except (OSError, AttributeError):  # an old driver: captures may then fail that make a table, as they did everywhere
        return
    exchange(ctypes.byref(ctypes.c_int(_RELAXED)))
