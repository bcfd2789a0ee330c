"""Calls recorded in a CUDA graph."""

import functools
import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from sparsefront.networks import AlwaysClamped, decomposed


def record(
    calls: Sequence[Callable[[], Any]], *, device: torch.device, warmup: int, eager: bool = False
) -> tuple[torch.cuda.CUDAGraph, list[Any]]:
    """Run the calls a few times, then record one pass over them.

    Args:
        calls: work for the device that reads the same memory each time.
        device: of type cuda; without an index, the current one.
        warmup: passes before the recording: kernels are compiled and libraries make their workspaces there.
        eager: whether no call is compiled code: they may copy from the processor then, see `CopiedBefore`, and ask whether
            values are finite, see `AlwaysClamped`.
    Returns:
        the graph, and what the recorded calls returned: tensors that every replay fills again.
    Raises:
        RuntimeError: a call did what a recording does not allow, such as waiting for the device.
    """
    if not eager:
        return _recorded(calls, device, warmup)
    with AlwaysClamped():
        try:
            return _recorded(calls, device, warmup)
        except RuntimeError as error:
            if COPIES not in str(error):
                raise
            return _recorded(calls, device, 1, CopiedBefore())


COPIES = "Cannot copy between CPU and CUDA tensors during CUDA graph capture"


class CopiedBefore(TorchDispatchMode):
    """Copies from the processor to the GPU, as of positions that a network counts there: they are made by a call before the
    recording, and each replay reads those.

    No replay would see other values either way.
    """

    def __init__(self) -> None:
        super().__init__()
        self.recording = False
        self.copies: list[tuple[Tensor, Tensor]] = []  # what was copied, and the copy, which replays read
        self._used = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if (parts := self._parts(func, args, kwargs)) is not NotImplemented:
            return parts
        if func is torch.ops.aten._to_copy.default:
            target = torch.device(kwargs.get("device") or args[0].device)
            if _leaves_the_processor(args[0], target):
                return self._copy(args[0], lambda: func(*args, **kwargs)).clone()
        elif func is torch.ops.aten.copy_.default and _leaves_the_processor(args[1], args[0].device):
            return func(args[0], self._copy(args[1], lambda: args[1].to(args[0].device)))
        return func(*args, **kwargs)

    def _parts(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result of an operator that is made of others, such as `to`."""
        with self:
            return decomposed(func, args, kwargs)

    def _copy(self, source: Tensor, make: Callable[[], Tensor]) -> Tensor:
        if not self.recording:
            self.copies.append((source.clone(), made := make()))
            return made
        known, made = self.copies[self._used] if self._used < len(self.copies) else (None, source)
        if known is None or not torch.equal(known, source):
            raise RuntimeError("copies other values from the processor at each call")
        self._used += 1
        return made


@contextmanager
def _no_garbage_collected() -> Iterator[None]:
    """Python may drop an earlier graph at any allocation, and what that frees on the GPU ends a recording."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class _ConstantsAreCopied(TorchFunctionMode):
    """`torch.tensor(0.0, device="cuda")` copies where `CopiedBefore` cannot see it: inside, as a tensor of the processor does."""

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func not in (torch.tensor, torch.as_tensor) or kwargs.get("device") is None or isinstance(args[0], Tensor):
            return func(*args, **kwargs)
        device = kwargs.pop("device")
        return func(*args, **kwargs, device="cpu").to(device)


def _leaves_the_processor(source: Tensor, target: torch.device) -> bool:
    return source.device.type == "cpu" and target.type != "cpu"


def _recorded(
    calls: Sequence[Callable[[], Any]],
    device: torch.device,
    warmup: int,
    copies: CopiedBefore | None = None,
) -> tuple[torch.cuda.CUDAGraph, list[Any]]:
    around: list[AbstractContextManager[Any]] = [] if copies is None else [copies, _ConstantsAreCopied()]
    with torch.cuda.device(device), ExitStack() as entered:
        for mode in around:
            entered.enter_context(mode)
        current, side = torch.cuda.current_stream(), torch.cuda.Stream()
        side.wait_stream(current)
        with torch.cuda.stream(side):
            for _ in range(warmup):
                for call in calls:
                    call()
        current.wait_stream(side)
        torch.cuda.synchronize()
        graph, recording = torch.cuda.CUDAGraph(), _recording_stream(torch.cuda.current_device())
        if copies is not None:
            copies.recording = True
            graph.reads = copies.copies  # type: ignore[attr-defined]  # a graph keeps no tensor alive
        reasons: list[Exception] = []
        try:
            # A recording that fails can leave its own stream current, and the outer context gives ours back;
            # thread_local, since a loader's thread may use CUDA meanwhile.
            with (
                _no_garbage_collected(),
                torch.cuda.stream(current),
                torch.cuda.graph(graph, stream=recording, capture_error_mode="thread_local"),
            ):
                try:
                    outputs = [call() for call in calls]  # held, so that each call writes memory of its own
                except Exception as error:
                    reasons.append(error)
                    raise
        except Exception as error:
            _end_recording_of_random_numbers()
            if reasons:  # of which the end of a recording says only that there is one
                raise reasons[0] from error
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
