"""Exchange gradients between ranks after the backward pass instead of during it."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from pytorch_lightning.strategies import DDPStrategy
from torch import Tensor, nn

from sparsefront import distributed


class ExchangeAfterBackward(DDPStrategy):
    """Lightning's strategy for existing ranks, without DDP's wrapper: the same gradients, bits and metrics.

    Floating-point buffers, such as BatchNorm statistics, are broadcast from rank 0 before every forward, as in DDP.

    Args:
        compress: exchange gradients as bf16, half the bytes.
        options: of `DDPStrategy`.
    """

    def __init__(self, *, compress: bool = False, **options: Any) -> None:
        super().__init__(**options)
        self._compress, self._accumulates = compress, False
        self._named: list[tuple[str, nn.Parameter]] = []
        self._exchanged: list[str] | None = None  # the parameters with gradients in the first step

    def configure_ddp(self) -> None:
        """Broadcast parameters and buffers of rank 0 instead of wrapping the module."""
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
        """Context for batches that are not followed by an optimizer step."""
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
        """Check that every rank has gradients of the same parameters in every step: they are exchanged by position.

        Raises:
            RuntimeError: names a parameter that has a gradient on some ranks or in some steps only.
        """
        if self._exchanged is None:
            for others in distributed.all_gather(names):
                _require_equal(names, others, "on all ranks")
            self._exchanged = names
        elif names != self._exchanged:
            _require_equal(names, self._exchanged, "in all steps")


def average_gradients(parameters: Sequence[nn.Parameter], *, compress: bool = False) -> None:
    """Replace this rank's gradients by the mean over ranks; a collective over the same parameters.

    Args:
        parameters: with gradients.
        compress: exchange them as bf16.
    """
    for dtype in dict.fromkeys(parameter.grad.dtype for parameter in parameters):
        alike = [parameter for parameter in parameters if parameter.grad.dtype == dtype]
        mean = torch.cat([parameter.grad.reshape(-1) for parameter in alike])
        if compress:
            mean = mean.to(torch.bfloat16)
        mean /= distributed.world_size()  # before the sum, as in DDP
        dist.all_reduce(mean)
        for parameter, values in zip(alike, _parts(mean.to(dtype), alike), strict=True):
            parameter.grad = values.view_as(parameter)


def _broadcast(tensors: Sequence[Tensor]) -> None:
    """Broadcast tensors from rank 0, all of one dtype at once."""
    for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
        alike = [tensor for tensor in tensors if tensor.dtype == dtype]
        together = torch.cat([tensor.reshape(-1) for tensor in alike])
        dist.broadcast(together, src=0)
        for tensor, values in zip(alike, _parts(together, alike), strict=True):
            tensor.copy_(values.view_as(tensor))


def _parts(together: Tensor, tensors: Sequence[Tensor]) -> Sequence[Tensor]:
    return together.split([tensor.numel() for tensor in tensors])


def _require_equal(names: list[str], others: list[str], where: str) -> None:
    differ = sorted(set(names) ^ set(others))
    if differ:
        raise RuntimeError(
            f"trainer.exchange_gradients=after_backward: parameter {differ[0]} has a gradient, but not {where}; "
            "use during_backward"
        )
