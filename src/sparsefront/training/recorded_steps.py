"""Training steps as CUDA graphs: one launch where Python would launch some thousand kernels."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor, nn

from sparsefront.errors import InvalidSetting, failure_reason
from sparsefront.pruning.mask_buffers import BUFFER

Batch = dict[str, Tensor]
Replay = Callable[[], None]
MOST_GRAPHS = 128  # shapes beyond these run as they are


class CudaGraphs:
    """Records functions into CUDA graphs that share their memory: one is replayed after the other."""

    def __init__(self) -> None:
        self._pool, self._stream = torch.cuda.graph_pool_handle(), torch.cuda.Stream()

    def __call__(self, run: Callable[[], None]) -> Replay:
        """A function that repeats all that `run` does on the GPU, on the same memory; `run` itself changes nothing there.

        Raises:
            RuntimeError: it does what no graph can hold, such as reading a value from the GPU.
        """
        # not by torch.cuda.graph, which gives all unused memory back each time: there is a graph for each shape
        graph, outside = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
        self._stream.wait_stream(outside)
        with torch.cuda.stream(self._stream):
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                run()
            except BaseException:
                with suppress(RuntimeError):  # that the capture is broken, which says less than what broke it
                    graph.capture_end()
                raise
            graph.capture_end()
        outside.wait_stream(self._stream)
        return graph.replay


class _Recorded:
    """Forward pass, loss and backward pass of one shape of batch.

    Args:
        batch: of that shape.
        gradients: parameter -> the tensor that its gradient is left in.
    """

    def __init__(
        self,
        record: Callable[[Callable[[], None]], Replay],
        step_loss: Callable[[Batch], Tensor],
        batch: Batch,
        gradients: dict[nn.Parameter, Tensor],
    ) -> None:
        self._batch = {name: value.clone() for name, value in batch.items()}
        self._gradients = gradients
        self._loss: Tensor | None = None

        def run() -> None:
            torch._foreach_zero_(list(gradients.values()))
            loss = step_loss(self._batch)
            with torch.autocast(loss.device.type, enabled=False):  # as Lightning goes backward, outside of it
                loss.backward()
            self._loss = loss.detach()

        self._place_gradients()
        self._replay = record(run)

    def __call__(self, batch: Batch) -> Tensor:
        """The loss of a batch, whose gradients lie at the parameters afterwards."""
        for name, value in self._batch.items():
            value.copy_(batch[name])
        self._place_gradients()
        self._replay()
        return self._loss.clone()

    def _place_gradients(self) -> None:
        for parameter, gradient in self._gradients.items():
            parameter.grad = gradient


def _read_by_steps(module: nn.Module) -> Iterator[Tensor]:
    """What a step reads by its address. Masks are not: they are applied behind the optimizer's step."""
    yield from module.parameters()
    for name, buffer in module.named_buffers():
        if name.rpartition(".")[2] != BUFFER:
            yield buffer


class RecordedSteps(pl.Callback):
    """Lightning callback: forward pass, loss and backward pass of a training step become a CUDA graph for each shape of batch.

    The first batch of a shape runs as always; with the second the graph is recorded, and this one and all later ones replay
    it: one launch in place of one for each kernel. The optimizer's step, clipping and masks run behind it as always. Kernels,
    their order and the numbers that dropout draws are meant to be those of a training without graphs, and so the weights
    wherever sums have one order (`trainer.deterministic`): small networks keep them to the bit, three epochs of MiniLM on SST-2
    did not (H200). Where parameters come to lie elsewhere in memory, all graphs are recorded anew.

    It is for networks and losses that do the same at every step but for values of tensors: what Python decides is recorded once.

    Args:
        record: see `CudaGraphs`, which it is where none is given.
    """

    def __init__(self, record: Callable[[Callable[[], None]], Replay] | None = None) -> None:
        self._record = record
        self._graphs: dict[tuple, _Recorded | None] = {}
        self._trained: list[nn.Parameter] = []
        self._gradients: dict[nn.Parameter, Tensor] = {}
        self._places: tuple[int, ...] = ()
        self._replayed = False

    def on_train_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        self._record = self._record or CudaGraphs()
        step_loss, backward, zero_grad = module.step_loss, module.backward, module.optimizer_zero_grad

        def recorded_step_loss(batch: Batch) -> Tensor:
            return self._step_loss(module, step_loss, batch)

        def backward_unless_replayed(loss: Tensor, *values: Any, **named: Any) -> None:
            if not self._replayed:
                backward(loss, *values, **named)
                # a parameter without a gradient gets none from a graph either: the optimizer leaves it alone
                self._trained = [parameter for parameter in module.parameters() if parameter.grad is not None]

        def zero_grad_unless_replayed(*values: Any, **named: Any) -> None:
            if not self._replayed:
                zero_grad(*values, **named)

        module.step_loss = recorded_step_loss
        module.backward, module.optimizer_zero_grad = backward_unless_replayed, zero_grad_unless_replayed

    def on_train_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        self._undo(module)

    def on_exception(self, trainer: pl.Trainer, module: pl.LightningModule, exception: BaseException) -> None:
        self._undo(module)

    def _undo(self, module: pl.LightningModule) -> None:
        for name in ("step_loss", "backward", "optimizer_zero_grad"):
            vars(module).pop(name, None)
        for parameter in self._gradients:
            parameter.grad = None
        self._graphs, self._gradients = {}, {}

    def _step_loss(self, module: pl.LightningModule, step_loss: Callable[[Batch], Tensor], batch: Batch) -> Tensor:
        places = tuple(tensor.data_ptr() for tensor in _read_by_steps(module))
        if places != self._places:
            self._graphs, self._gradients, self._places = {}, {}, places
        shape = tuple((name, value.shape, value.dtype) for name, value in batch.items())
        self._replayed = shape in self._graphs
        if not self._replayed:
            if len(self._graphs) < MOST_GRAPHS:
                self._graphs[shape] = None
            return step_loss(batch)
        if (found := self._graphs[shape]) is None:
            self._gradients = self._gradients or {parameter: torch.zeros_like(parameter) for parameter in self._trained}
            found = self._graphs[shape] = self._recorded(step_loss, batch)
        return found(batch)

    def _recorded(self, step_loss: Callable[[Batch], Tensor], batch: Batch) -> _Recorded:
        try:
            return _Recorded(self._record, step_loss, batch, self._gradients)
        except RuntimeError as error:
            raise InvalidSetting(
                "trainer.cuda_graph", True, f"this training step cannot be recorded: {failure_reason(error)}; use false"
            ) from error
