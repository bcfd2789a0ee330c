"""torch.compile for training steps, memory formats, and deterministic algorithms."""

import logging
import math
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any

import pytorch_lightning as pl
import torch
from torch import nn
from torch.utils import deterministic as debugging
from torch.utils._pytree import tree_leaves

from sparsefront.errors import InvalidSetting
from sparsefront.models.base import block_names
from sparsefront.training.graphs import GraphedForward, HiddenStates, capture_passes, obstacle

# Bitwise reproducible runs on a GPU, without algorithms that sum in varying order.

WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"  # environment variable
FIXED_WORKSPACE = ":4096:8"  # 32 MiB, torch's default on Hopper


def fix_workspace() -> None:
    """Make cuBLAS reproducible by fixing its workspace size, which torch reads once, before its first GPU product."""
    os.environ.setdefault(WORKSPACE, FIXED_WORKSPACE)


@contextmanager
def deterministic_algorithms(wanted: bool) -> Iterator[None]:
    """Context in which torch uses deterministic algorithms. It ends before anything is timed, which they would slow down.

    Args:
        wanted: False changes nothing.
    Raises:
        InvalidSetting: an operation has no such algorithm, or a product ran before `fix_workspace`.
    """
    if not wanted:
        yield
        return
    with _restore_settings():
        # by default new tensors are filled with NaN to reveal uninitialized reads, which costs a pass over each
        debugging.fill_uninitialized_memory, torch.backends.cudnn.benchmark = False, False
        torch.use_deterministic_algorithms(True)
        try:
            yield
        except RuntimeError as error:
            if "deterministic" not in str(error):
                raise
            raise InvalidSetting("trainer.deterministic", True, f"{str(error).splitlines()[0]}; use false") from error


@contextmanager
def fastest_algorithms() -> Iterator[None]:
    """Context inside `deterministic_algorithms` in which torch uses all algorithms again, for timing.

    In fp16 with an attention mask, the deterministic ones exclude cuDNN's attention, which costs BERT-base half a millisecond
    of seven (batch 128, 128 tokens, H200).
    """
    with _restore_settings():
        torch.use_deterministic_algorithms(False)
        yield


@contextmanager
def _restore_settings() -> Iterator[None]:
    """Context that restores torch's settings for algorithms on exit."""
    before = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        debugging.fill_uninitialized_memory,
        torch.backends.cudnn.benchmark,
    )
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
        debugging.fill_uninitialized_memory, torch.backends.cudnn.benchmark = before[2:]


@contextmanager
def channels_last(net: nn.Module, *, wanted: bool) -> Iterator[None]:
    """Context in which filters of plain convolutions, and hence their outputs, are channels_last: otherwise cuDNN would transpose
    before and after every 16-bit product. Contiguous again on exit.

    Args:
        wanted: False changes nothing.
    """
    filters = [part.weight for part in net.modules() if wanted and type(part) is nn.Conv2d]
    try:
        for weight in filters:
            weight.data = weight.data.contiguous(memory_format=torch.channels_last)
        yield
    finally:
        for weight in filters:
            weight.data = weight.data.contiguous()


log = logging.getLogger(__name__)
CPP = ("CXX", "g++", "clang++", "c++")  # an environment variable, then compiler commands
C = ("CC", "gcc", "clang", "cc")


class CompileSteps(pl.Callback):
    """Lightning callback that runs forward and backward passes as compiled code in training, with far fewer launches from Python.
    A teacher's forward passes are compiled and captured too.

    The forward of a module is replaced on the instance, so state dict names and hooks on the module itself do not change, and
    DDP gets the gradients of a block as soon as its backward ends. Eval mode runs the original forward: scores and validation
    use no compiled code. Dropout draws the same numbers. Batch sizes and lengths are symbolic, and identical blocks share code.

    Put it after callbacks that add hooks or parametrizations, which would need separate code for each block: a network that has
    them inside a compiled module is not compiled, with a notice.

    Args:
        what: blocks = each member of the network's block lists; network = all in one; none = nothing.
        graphs: run passes of the whole network, compiled or not, as CUDA graphs (`GraphedForward`).
    """

    def __init__(self, what: str, *, graphs: bool = False) -> None:
        self.what, self.graphs = what, graphs
        self.graphed: list[GraphedForward] = []
        self._undo = ExitStack()

    def on_train_start(self, trainer: pl.Trainer | None, module: pl.LightningModule) -> None:
        networks: list[tuple[nn.Module, HiddenStates | None, bool]] = [(module.net, module.states, True)]
        if module.teacher is not None:
            networks.append((*module.teacher, False))
        for net, states, trains in networks:
            if self.what != "none":
                self._compile(net, trains=trains)
            graphed = self._undo.enter_context(capture_passes(net, states=states, trains=trains, enabled=self.graphs))
            self.graphed += [] if graphed is None else [graphed]

    def _compile(self, net: nn.Module, *, trains: bool) -> None:
        modules = self._modules(net)
        for name, part in modules.items():
            reason = obstacle(part)
            if reason is not None:
                log.warning("trainer.compile=%s is left out: %s has %s", self.what, name or "the network", reason)
                return
        # blocks of one class share a code cache, in which each variant takes an entry or two
        limit = max(torch._dynamo.config.recompile_limit, 4 * len(modules))
        self._undo.enter_context(torch._dynamo.config.patch(recompile_limit=limit))
        for part in modules.values():
            part.forward = _compile_forward(part, trains=trains)
            self._undo.callback(delattr, part, "forward")

    def on_train_end(self, trainer: pl.Trainer | None, module: pl.LightningModule) -> None:
        self._undo.close()

    def on_exception(self, trainer: pl.Trainer, module: pl.LightningModule, exception: BaseException) -> None:
        self._undo.close()

    def _modules(self, net: nn.Module) -> dict[str, nn.Module]:
        if self.what == "network":
            return {"": net}
        names = _blocks(net)
        if not names:
            log.warning(
                "trainer.compile=blocks is left out: the network has no list of blocks; network compiles it as a whole"
            )
        return {name: net.get_submodule(name) for name in names}


def _blocks(net: nn.Module) -> list[str]:
    # any class of Linear: sparse training has its own, which dense training must not import
    weighted = [
        name
        for name, part in net.named_modules()
        if hasattr(part, "in_features") or isinstance(part, nn.modules.conv._ConvNd)
    ]
    return block_names(net, weighted)


WARM_UP, WATCHED = 3, 8  # steps: before the timing; timed
CAPTURING_S, COMPILING_S = 5, 150  # seconds that a training must have left for graphs, or code, to pay for themselves
LONGEST_TRIAL = 300  # steps, if batches are of so many sizes that few repeat


class ChooseSteps(pl.Callback):
    """Lightning callback of `trainer.compile=auto` and `trainer.cuda_graphs=auto`: times the first steps launched from Python,
    then as CUDA graphs, then with compiled blocks too, and keeps the fastest version. A line in the log compares each with the
    fastest before it.

    A version is tried if enough steps are left for it: code compiles for up to a minute, graphs are captured in seconds. Times
    are seconds per input value, from the start of one step to that of the next, so that steps of different sizes compare;
    steps that compile or capture do not count.

    Args:
        blocks: whether blocks may be compiled.
        graphs: whether passes may be captured.
        faster: (what, graphs=...) -> the callback that replaces forwards.
    """

    def __init__(self, *, blocks: bool, graphs: bool, faster: Callable[..., CompileSteps] = CompileSteps) -> None:
        self._faster = faster
        self._untried = [("none", CAPTURING_S)] * graphs + [("blocks", COMPILING_S)] * blocks
        self._graphs = graphs
        self._finished = False
        self._steps: CompileSteps | None = None  # of the version that runs; None: launched from Python
        self._fastest: tuple[float, float, str | None] = (
            math.inf,
            math.inf,
            None,
        )  # seconds per value and step; its `what`
        self._begun = 0  # steps of this version
        self._current: tuple[Any, int, int] | None = None  # start of the current step, its values, replays before it
        self._timed: list[tuple[Any, Any, int]] = []  # start and end of a step, its values

    def on_train_batch_start(self, trainer: pl.Trainer, module: pl.LightningModule, batch: Any, batch_idx: int) -> None:
        if self._finished:
            return
        now = _now(module.device)
        if self._current is not None and batch_idx > 0:  # validation precedes an epoch's first batch
            self._add(now)
        self._begun += 1
        if len(self._timed) == WATCHED or (self._steps is not None and self._begun > LONGEST_TRIAL):
            self._compare(trainer, module)
        values = sum(one.numel() for one in tree_leaves(batch) if isinstance(one, torch.Tensor))
        self._current = now, values, self._replays()

    def on_train_end(self, trainer: pl.Trainer | None, module: pl.LightningModule) -> None:
        if self._steps is not None:
            self._steps.on_train_end(trainer, module)

    def on_exception(self, trainer: pl.Trainer, module: pl.LightningModule, exception: BaseException) -> None:
        self.on_train_end(trainer, module)

    def _add(self, now: Any) -> None:
        """Add the step that ends now, if it only ran what was compiled and captured before."""
        assert self._current is not None
        start, values, replays = self._current
        graphed = self._list_graphs()
        if self._replays() - replays == len(graphed) if graphed else self._begun > WARM_UP:
            self._timed.append((start, now, values))

    def _list_graphs(self) -> list[GraphedForward]:
        return [] if self._steps is None else [one for one in self._steps.graphed if not one.failed]

    def _replays(self) -> int:
        """Calls that only replayed."""
        return sum(one.replays - one.captures for one in self._list_graphs())

    def _compare(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        """Compare the version that runs with the fastest one so far; go on to the next, or end with the fastest."""
        per_value, per_step = self._seconds() if self._timed else (math.inf, math.inf)
        what = None if self._steps is None else self._steps.what
        if self._steps is not None:
            speedup = self._fastest[0] / per_value
            parts = ["compiled blocks"] * (what == "blocks") + ["CUDA graphs"] * bool(self._list_graphs())
            choice = "used" if speedup > 1 else "not used"
            log.info("training steps: %s give %.2fx, %s", " and ".join(parts) or "nothing captured", speedup, choice)
            self._graphs &= bool(self._list_graphs())  # what cannot be captured cannot be with compiled blocks either
        if per_value < self._fastest[0]:
            self._fastest = per_value, per_step, what
        left_s = self._fastest[1] * (trainer.estimated_stepping_batches - trainer.global_step)
        while self._untried:
            following, needed_s = self._untried.pop(0)
            if left_s >= needed_s and (following == "none" or _compiles(module.net)):
                return self._run(following, module)
        self._finished = True
        if self._fastest[2] != what:
            self._run(self._fastest[2], module)

    def _run(self, what: str | None, module: pl.LightningModule) -> None:
        """Replace the version that runs; None: steps are launched from Python."""
        if self._steps is not None:
            self._steps.on_train_end(None, module)
        self._begun, self._timed, self._current = 0, [], None
        self._steps = None if what is None else self._faster(what, graphs=self._graphs)
        if self._steps is not None:
            self._steps.on_train_start(None, module)

    def _seconds(self) -> tuple[float, float]:
        """Seconds per value and per step of the timed steps."""
        total = sum(_measure_s(start, end) for start, end, _ in self._timed)
        return total / max(1, sum(values for *_, values in self._timed)), total / len(self._timed)


def _compiles(net: nn.Module) -> bool:
    """Whether the network has blocks, all of which can be compiled."""
    blocks = [net.get_submodule(name) for name in _blocks(net)]
    return bool(blocks) and all(obstacle(block) is None for block in blocks)


def _now(device: torch.device) -> Any:
    """A point in time of the device's work, which is not waited for."""
    if device.type != "cuda":
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def _measure_s(start: Any, end: Any) -> float:
    if isinstance(start, float):
        return end - start
    end.synchronize()
    return start.elapsed_time(end) / 1e3


def why_unavailable(on_gpu: bool) -> str | None:
    """Why torch.compile does not work on this machine; None if it does."""
    from torch.utils._triton import has_triton

    if not torch._dynamo.is_dynamo_supported():
        return "torch.compile does not support this version of Python or this system"
    if on_gpu and not has_triton():
        return "needs Triton, which is absent or does not support this GPU"
    variable, *commands = C if on_gpu else CPP
    if not any(shutil.which(command) for command in (os.environ.get(variable, ""), *commands) if command):
        return f"needs a compiler, {commands[0]} or {commands[1]}, or its path in ${variable}"
    return None


def _compile_forward(module: nn.Module, *, trains: bool) -> Callable[..., Any]:
    """The compiled forward in training mode, the plain one in eval mode; for a teacher, the compiled one in both."""
    plain = module.forward
    compiled = torch.compile(plain, dynamic=True, options={"fallback_random": True})

    @wraps(plain)
    def forward(*values: Any, **named: Any) -> Any:
        return compiled(*values, **named) if module.training or not trains else plain(*values, **named)

    return forward
