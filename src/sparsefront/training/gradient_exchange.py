"""Ranks that exchange all gradients at once, after the backward pass.

PyTorch's DDP exchanges them by buckets while the backward pass still runs, which hides a slow exchange. For that it copies every
gradient into its bucket, one launch each. Where GPUs of one host wait for Python and not for each other, these launches are what
a second GPU costs (`experiments/ddp`): here all gradients are copied in a few launches, and one exchange follows.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from pytorch_lightning.strategies import DDPStrategy
from torch import Tensor, nn

from sparsefront import distributed


class ExchangeAfterBackward(DDPStrategy):
    """Lightning's strategy for ranks that are there already, without the wrapper of DDP: the same gradients, bits and metrics.

    Floating-point buffers, such as the statistics of BatchNorm, are rank 0's at the start of every forward, as with DDP.

    Args:
        compress: gradients travel as bf16, half as many bytes.
        options: of `DDPStrategy`.
    """

    def __init__(self, *, compress: bool = False, **options: Any) -> None:
        super().__init__(**options)
        self._compress, self._accumulates = compress, False
        self._named: list[tuple[str, nn.Parameter]] = []
        self._exchanged: list[str] | None = None  # the parameters that the first step has gradients of

    def configure_ddp(self) -> None:
        """In place of the wrapper: parameters and buffers of rank 0."""
        _broadcast([parameter.detach() for parameter in self.model.parameters()])
        self._named = [(name, one) for name, one in self.model.named_parameters() if one.requires_grad]
        self._share_buffers()

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        self._share_buffers()
        return super().training_step(*args, **kwargs)

    def validation_step(self, *args: Any, **kwargs: Any) -> Any:
        self._share_buffers()
        return super().validation_step(*args, **kwargs)

    @contextmanager
    def block_backward_sync(self) -> Iterator[None]:
        """Around batches after which no optimizer step follows."""
        self._accumulates = True
        try:
            yield
        finally:
            self._accumulates = False

    def post_backward(self, closure_loss: Tensor) -> None:
        super().post_backward(closure_loss)
        if not self._accumulates:
            known = [(name, parameter) for name, parameter in self._named if parameter.grad is not None]
            self._require_the_same([name for name, _ in known])
            average_gradients([parameter for _, parameter in known], compress=self._compress)

    def _share_buffers(self) -> None:
        _broadcast([buffer for buffer in self.model.buffers() if buffer.is_floating_point()])

    def _require_the_same(self, names: list[str]) -> None:
        """Gradients are exchanged by their places: every rank has those of the same parameters in every step.

        Raises:
            RuntimeError: names a parameter that has a gradient on some ranks only, or in some steps only.
        """
        if self._exchanged is None:
            for others in distributed.all_gather(names):
                _require_equal(names, others, "on all ranks")
            self._exchanged = names
        elif names != self._exchanged:
            _require_equal(names, self._exchanged, "in all steps")


def average_gradients(parameters: Sequence[nn.Parameter], *, compress: bool = False) -> None:
    """Replace the gradients of this rank by the mean over the ranks; every rank calls it with the same parameters.

    Args:
        parameters: with gradients.
        compress: these travel as bf16.
    """
    for dtype in dict.fromkeys(parameter.grad.dtype for parameter in parameters):
        alike = [parameter for parameter in parameters if parameter.grad.dtype == dtype]
        mean = torch.cat([parameter.grad.reshape(-1) for parameter in alike])
        if compress:
            mean = mean.to(torch.bfloat16)
        mean /= distributed.world_size()  # before the sum, as DDP does it
        dist.all_reduce(mean)
        for parameter, values in zip(alike, _parts(mean.to(dtype), alike), strict=True):
            parameter.grad = values.view_as(parameter)


def _broadcast(tensors: Sequence[Tensor]) -> None:
    """Those of rank 0, of each dtype at once."""
    for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
        alike = [tensor for tensor in tensors if tensor.dtype == dtype]
        together = torch.cat([tensor.reshape(-1) for tensor in alike])
        dist.broadcast(together, src=0)
        for tensor, values in zip(alike, _parts(together, alike), strict=True):
            tensor.copy_(values.view_as(tensor))


def _parts(together: Tensor, tensors: Sequence[Tensor]) -> Sequence[Tensor]:
    return together.split([tensor.numel() for tensor in tensors])


def _require_equal(names: list[str], others: list[str], where: str) -> None:
    if differ := sorted(set(names) ^ set(others)):
        raise RuntimeError(
            f"trainer.exchange_gradients=after_backward: parameter {differ[0]} has a gradient, but not {where}; "
            "use during_backward"
        )
