"""Recording calls in a CUDA graph."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch


def record(
    calls: Sequence[Callable[[], Any]], *, device: torch.device, warmup: int
) -> tuple[torch.cuda.CUDAGraph, list[Any]]:
    """Run the calls a few times, then record one pass over them.

    Args:
        calls: work for the device that reads the same memory each time.
        device: of type cuda; without an index, the current one.
        warmup: passes before the recording: kernels are compiled and libraries make their workspaces there.
    Returns:
        the graph, and what the recorded calls returned: tensors that every replay fills again.
    Raises:
        RuntimeError: a call did what a recording does not allow, such as waiting for the device.
    """
    with torch.cuda.device(device):
        current, side = torch.cuda.current_stream(), torch.cuda.Stream()
        side.wait_stream(current)
        with torch.cuda.stream(side):
            for _ in range(warmup):
                for call in calls:
                    call()
        current.wait_stream(side)
        torch.cuda.synchronize()
        graph, recording = torch.cuda.CUDAGraph(), _recording_stream(torch.cuda.current_device())
        try:
            # A recording that fails can leave its own stream current, and the outer context gives ours back;
            # thread_local, since a loader's thread may use CUDA meanwhile.
            with (
                torch.cuda.stream(current),
                torch.cuda.graph(graph, stream=recording, capture_error_mode="thread_local"),
            ):
                outputs = [call() for call in calls]  # held, so that each call writes memory of its own
        except Exception:
            _end_recording_of_random_numbers()
            raise
        return graph, outputs


@functools.cache
def _recording_stream(index: int) -> torch.cuda.Stream:
    """One of each device: torch's own is on the device of the first recording, and records no other device's work.

    Not the stream of the warm-up, so that a library's workspace for it lies in a graph's memory.
    """
    return torch.cuda.Stream(index)


def _end_recording_of_random_numbers() -> None:
    """A failed recording leaves the generator in recording mode, where it rejects every further draw.

    A clone has the same seed and offset and is not recording.
    """
    generator = torch.cuda.default_generators[torch.cuda.current_device()]
    generator.graphsafe_set_state(generator.clone_state())
