"""torch.compile for training steps, memory formats, and deterministic algorithms."""

import logging
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any

import pytorch_lightning as pl
import torch
from torch import nn
from torch.nn.utils import parametrize
from torch.utils import deterministic as debugging

from sparsefront.errors import InvalidSetting
from sparsefront.models.base import block_names
from sparsefront.training.graphs import GraphedForward

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
    with _restored():
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
    with _restored():
        torch.use_deterministic_algorithms(False)
        yield


@contextmanager
def _restored() -> Iterator[None]:
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


# Memory format of images and filters for tensor cores.


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
        self._undo = ExitStack()

    def on_train_start(self, trainer: pl.Trainer | None, module: pl.LightningModule) -> None:
        if self.what != "none":
            self._compile(module.net)
        if self.graphs:
            self._record(module.net)

    def _compile(self, net: nn.Module) -> None:
        modules = self._modules(net)
        for name, part in modules.items():
            if (why := _obstacle(part)) is not None:
                log.warning("trainer.compile=%s is left out: %s has %s", self.what, name or "the network", why)
                return
        # blocks of one class share a code cache, in which each variant takes an entry or two
        limit = max(torch._dynamo.config.recompile_limit, 2 * len(modules))
        self._undo.enter_context(torch._dynamo.config.patch(recompile_limit=limit))
        for part in modules.values():
            part.forward = _in_training(part)
            self._undo.callback(delattr, part, "forward")

    def _record(self, net: nn.Module) -> None:
        if (why := _obstacle(net)) is not None:
            log.warning("trainer.cuda_graphs is left out: the network has %s", why)
            return
        before = vars(net).get("forward")
        net.forward = GraphedForward(net, net.forward)
        undo = (delattr, net, "forward") if before is None else (setattr, net, "forward", before)
        self._undo.callback(*undo)

    def on_train_end(self, trainer: pl.Trainer | None, module: pl.LightningModule) -> None:
        self._undo.close()

    def on_exception(self, trainer: pl.Trainer, module: pl.LightningModule, exception: BaseException) -> None:
        self._undo.close()

    def _modules(self, net: nn.Module) -> dict[str, nn.Module]:
        if self.what == "network":
            return {"": net}
        # any class of Linear: sparse training has its own, which dense training must not import
        weighted = [
            name
            for name, part in net.named_modules()
            if hasattr(part, "in_features") or isinstance(part, nn.modules.conv._ConvNd)
        ]
        names = block_names(net, weighted)
        if not names:
            log.warning(
                "trainer.compile=blocks is left out: the network has no list of blocks; network compiles it as a whole"
            )
        return {name: net.get_submodule(name) for name in names}


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


def _in_training(module: nn.Module) -> Callable[..., Any]:
    plain = module.forward
    compiled = torch.compile(plain, dynamic=True, options={"fallback_random": True})

    @wraps(plain)
    def forward(*values: Any, **named: Any) -> Any:
        return compiled(*values, **named) if module.training else plain(*values, **named)

    return forward


def _obstacle(module: nn.Module) -> str | None:
    """What prevents compilation; hooks on the module itself do not, because they run outside of it."""
    for name, part in module.named_modules():
        if parametrize.is_parametrized(part):
            return f"a parametrized weight in {name}"
        if name and (part._forward_hooks or part._forward_pre_hooks):
            return f"a hook on {name}"
    return None
