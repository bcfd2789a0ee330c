"""torch.compile and CUDA graphs in training steps, layouts, and algorithms that repeat to the bit."""

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

# Runs that repeat to the bit on a GPU: algorithms that add in no fixed order are not used.

WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"  # environment variable
FIXED_WORKSPACE = ":4096:8"  # 32 MiB, as much as torch takes on Hopper without it


def fix_workspace() -> None:
    """cuBLAS repeats its results with a workspace of fixed size. Torch reads this once, before its first product on a GPU."""
    os.environ.setdefault(WORKSPACE, FIXED_WORKSPACE)


@contextmanager
def deterministic_algorithms(wanted: bool) -> Iterator[None]:
    """Torch's deterministic algorithms, for this long: they would slow down what is timed afterwards.

    Args:
        wanted: False changes nothing.
    Raises:
        InvalidSetting: an operation has no such algorithm, or a product ran before `fix_workspace`.
    """
    if not wanted:
        yield
        return
    with _restored():
        # new tensors are filled with NaN by default, to find those that are read too early; that costs a pass over each
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
    """Every algorithm of torch again, for this long: inside of `deterministic_algorithms`, what is timed runs as it will be used.

    In fp16 with an attention mask the deterministic ones lack cuDNN's attention, which takes half a millisecond of seven from
    BERT-base (batch 128, 128 tokens, H200).
    """
    with _restored():
        torch.use_deterministic_algorithms(False)
        yield


@contextmanager
def _restored() -> Iterator[None]:
    """What torch may do, afterwards as before."""
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


# Images and filters as tensor cores read them.


@contextmanager
def channels_last(net: nn.Module, *, wanted: bool) -> Iterator[None]:
    """While open, the filters of plain convolutions lie channel by channel of a pixel, and so do the images that they give: cuDNN
    would rearrange others before and after every product of 16 bits. At the end they are contiguous.

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
CPP = ("CXX", "g++", "clang++", "c++")  # an environment variable, then commands
C = ("CC", "gcc", "clang", "cc")


class CompileSteps(pl.Callback):
    """Lightning callback: while the network trains, its forward and backward passes are generated code, which takes a fraction of
    the calls from Python to the driver.

    The forward of a module is replaced on the instance. So names in the state dict and hooks on the module itself stay as they
    are, and DDP gets the gradients of a block as soon as its backward ends. In eval mode the module's own forward runs: scores
    and validation do without generated code. Dropout draws the same numbers as without. Lengths and sizes of batches are
    symbols in the code, which is generated once for all blocks that are alike.

    It is to stand behind callbacks that put hooks or parametrizations on the network: each block would need code of its own for
    those, so that a network that has them inside of what is compiled stays as it is, with a notice.

    Args:
        what: blocks = each member of the network's lists of blocks; network = all in one; none = nothing.
        graphs: passes of the whole network, compiled or not, are CUDA graphs (`GraphedForward`).
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
        # blocks of one class share a cache of code, in which each kind of them takes a place or two
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
        # Linears of any class: sparse training has one of its own, on whose code a dense training does not depend
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
    """What torch.compile lacks on this machine; None = nothing."""
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
    """What would have to become part of the code; hooks on the module itself are called outside of it."""
    for name, part in module.named_modules():
        if parametrize.is_parametrized(part):
            return f"a parametrized weight in {name}"
        if name and (part._forward_hooks or part._forward_pre_hooks):
            return f"a hook on {name}"
    return None
