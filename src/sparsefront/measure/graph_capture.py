"""Recording calls in a CUDA graph."""

from collections.abc import Callable, Sequence
from typing import Any

import torch


def record(calls: Sequence[Callable[[], Any]], *, warmup: int) -> tuple[torch.cuda.CUDAGraph, list[Any]]:
    """Run the calls a few times, then record one pass over them.

    Args:
        calls: work for the current CUDA device that reads the same memory each time.
        warmup: passes before the recording: kernels are compiled and libraries make their workspaces there.
    Returns:
        the graph, and what the recorded calls returned: tensors that every replay fills again.
    Raises:
        RuntimeError: a call did what a recording does not allow, such as waiting for the device.
    """
    current, side = torch.cuda.current_stream(), torch.cuda.Stream()
    side.wait_stream(current)
    with torch.cuda.stream(side):
        for _ in range(warmup):
            for call in calls:
                call()
    current.wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    try:
        # A recording that fails can leave its own stream current, and the outer context gives ours back;
        # thread_local, since a loader's thread may use CUDA meanwhile.
        with torch.cuda.stream(current), torch.cuda.graph(graph, capture_error_mode="thread_local"):
            outputs = [call() for call in calls]  # held, so that each call writes memory of its own
    except Exception:
        _end_recording_of_random_numbers()
        raise
    return graph, outputs


def _end_recording_of_random_numbers() -> None:
    """A failed recording leaves the generator in recording mode, where it rejects every further draw.

    A clone has the same seed and offset and is not recording.
    """
    generator = torch.cuda.default_generators[torch.cuda.current_device()]
    generator.graphsafe_set_state(generator.clone_state())
