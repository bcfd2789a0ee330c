"""Device copies of tables computed on the host: complete before anyone reads them, and outside of CUDA graph memory.

Kernels find their work in such tables, which are cached for later calls. So whatever call creates one, every stream must be
able to read it immediately, also during graph capture or under `torch.compile(mode="reduce-overhead")`, whose graphs reuse
memory allocated during capture. A graph reads them at each replay, long after the cache may have dropped them.
"""

import ctypes
import functools
import os
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch
from torch import Tensor

Tables = TypeVar("Tables")
_RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED


def on_device(table: Tensor, device: torch.device) -> Tensor:
    """Copy a host table to a device; the copy is complete on return.

    Args:
        table: on the CPU.
        device: where kernels will read it, on any stream.
    """
    return _copier().submit(_copied, table, device).result() if device.type == "cuda" else table.to(device)


def keep_for_graphs(weight: Tensor, tables: Tables) -> Tables:
    """Tables of a launch, which live as long as the memory of the weight if the launch is recorded in a CUDA graph.

    Args:
        weight: part of the packed weight, which the graph reads as well.
    """
    if torch.cuda.is_current_stream_capturing():
        weight.untyped_storage().__dict__.setdefault("tables_of_graphs", {})[id(tables)] = tables
    return tables


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
    """A separate thread, whose allocations never belong to a graph that another thread captures or warms up."""
    return ThreadPoolExecutor(1, "sparsefront-tables", initializer=_allow_copies_during_captures)


os.register_at_fork(after_in_child=_copier.cache_clear)  # the thread is in the parent alone


def _allow_copies_during_captures() -> None:
    """Exempt this thread from capture restrictions: its stream is never captured and disturbs no other capture."""
    try:
        exchange = ctypes.CDLL("libcuda.so.1").cuThreadExchangeStreamCaptureMode
    except (OSError, AttributeError):  # old driver: captures that create a table may then fail
        return
    exchange(ctypes.byref(ctypes.c_int(_RELAXED)))
