"""Record calls in a CUDA graph."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from sparsefront.networks import AlwaysClamped, decompose
from sparsefront.training.graphs import COPIES, capture


def record(
    calls: Sequence[Callable[[], Any]], *, device: torch.device, warmup: int, eager: bool = False
) -> tuple[torch.cuda.CUDAGraph, list[Any]]:
    """Run the calls a few times, then record one pass over them.

    Args:
        calls: work for the device that reads the same memory each time.
        device: of type cuda; without an index, the current one.
        warmup: passes before the recording, in which kernels are compiled and libraries allocate workspaces.
        eager: whether all calls are eager code. They may then copy from the CPU, see `CopiedBefore`, and test whether values
            are finite, see `AlwaysClamped`.
    Returns:
        the graph, and the outputs of the recorded calls, which every replay overwrites.
    Raises:
        RuntimeError: a call did something that cannot be recorded, such as synchronizing with the device.
    """
    if not eager:
        return _record(calls, device, warmup)
    with AlwaysClamped():
        try:
            return _record(calls, device, warmup)
        except RuntimeError as error:
            if COPIES not in str(error):
                raise
            return _record(calls, device, 1, CopiedBefore())


class CopiedBefore(TorchDispatchMode):
    """Moves CPU-to-GPU copies, such as of position ids built on the CPU, to a call before the recording.

    Replays read those copies. They could not see other values anyway.
    """

    def __init__(self) -> None:
        super().__init__()
        self.recording = False
        self.copies: list[tuple[Tensor, Tensor]] = []  # (source, copy that replays read)
        self._used = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        parts = self._parts(func, args, kwargs)
        if parts is not NotImplemented:
            return parts
        if func is torch.ops.aten._to_copy.default:
            target = torch.device(kwargs.get("device") or args[0].device)
            if _is_host_to_device(args[0], target):
                return self._copy(args[0], lambda: func(*args, **kwargs)).clone()
        elif func is torch.ops.aten.copy_.default and _is_host_to_device(args[1], args[0].device):
            return func(args[0], self._copy(args[1], lambda: args[1].to(args[0].device)))
        return func(*args, **kwargs)

    def _parts(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result of a composite operator, such as `to`."""
        with self:
            return decompose(func, args, kwargs)

    def _copy(self, source: Tensor, make: Callable[[], Tensor]) -> Tensor:
        if not self.recording:
            self.copies.append((source.clone(), made := make()))
            return made
        known, made = self.copies[self._used] if self._used < len(self.copies) else (None, source)
        if known is None or not torch.equal(known, source):
            raise RuntimeError("copies other values from the processor at each call")
        self._used += 1
        return made


class _ConstantsViaCpu(TorchFunctionMode):
    """Splits `torch.tensor(0.0, device="cuda")` into a CPU tensor and `to`, whose copy `CopiedBefore` can see."""

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func not in (torch.tensor, torch.as_tensor) or kwargs.get("device") is None or isinstance(args[0], Tensor):
            return func(*args, **kwargs)
        device = kwargs.pop("device")
        return func(*args, **kwargs, device="cpu").to(device)


def _is_host_to_device(source: Tensor, target: torch.device) -> bool:
    return source.device.type == "cpu" and target.type != "cpu"


def _record(
    calls: Sequence[Callable[[], Any]], device: torch.device, warmup: int, copies: CopiedBefore | None = None
) -> tuple[torch.cuda.CUDAGraph, list[Any]]:
    around: list[AbstractContextManager[Any]] = [] if copies is None else [copies, _ConstantsViaCpu()]
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
        graph = torch.cuda.CUDAGraph()
        if copies is not None:
            copies.recording = True
            graph.reads = copies.copies  # type: ignore[attr-defined]  # a graph keeps no tensor alive
        # outputs are kept alive, so that each call writes memory of its own
        return graph, capture(lambda: [call() for call in calls], graph)
