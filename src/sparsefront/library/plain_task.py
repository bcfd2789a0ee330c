"""A user's network and loss as a task, so that every recovery trains them."""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from pytorch_lightning import LightningDataModule
from torch import Tensor, nn

from sparsefront.errors import InvalidSetting
from sparsefront.library.batches import TARGET
from sparsefront.library.inputs import forward_names
from sparsefront.tasks.base import Batch, Evaluator, Optimizes, Task

Loss = Callable[[Any, Any], Tensor]
"""(output of the network, target of the batch) -> mean loss, a scalar; of a dict batch the target is the whole batch."""


class PlainTask(Task):
    """Trains any network; evaluates nothing.

    Args:
        net: called with the inputs of a batch by name.
        loss: `Loss`; None: the network's output holds it under `loss`, as Hugging Face's do.
        optimization: needed to train.
    """

    kind: ClassVar[str] = "plain"

    def __init__(self, net: nn.Module, loss: Loss | None, optimization: Optimizes | None = None) -> None:
        super().__init__(net, optimization)
        self._names, self._loss = forward_names(net), loss

    @classmethod
    def for_dataset(cls, net: nn.Module, dataset: object, optimization: Optimizes | None = None) -> "PlainTask":
        raise NotImplementedError("a plain task is made of a network and a loss")

    def net_inputs(self, batch: Batch) -> Batch:
        wanted = batch.keys() - {TARGET} if self._names is None else set(self._names)
        return {name: value for name, value in batch.items() if name in wanted}

    def loss(self, output: Any, batch: Batch) -> Tensor:
        found = self._loss_of(output, batch)
        if not isinstance(found, Tensor) or found.numel() != 1:
            given = list(found.shape) if isinstance(found, Tensor) else type(found).__name__
            raise InvalidSetting("loss", given, "must be the mean over the batch, a tensor of one number")
        return found

    def _loss_of(self, output: Any, batch: Batch) -> Any:
        if self._loss is not None:
            return self._loss(output, batch[TARGET] if TARGET in batch else batch)
        found = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
        if found is None:
            allowed = "may be left out only where the network returns its loss; give loss(output, target)"
            raise InvalidSetting("loss", None, allowed)
        return found

    def logits(self, output: Any) -> tuple[Tensor, ...]:
        if isinstance(output, Tensor):
            return (predictions(output),)
        named = dict(output).items() if isinstance(output, Mapping) else vars(output).items()
        found = tuple(value for name, value in named if name.endswith("logits") and isinstance(value, Tensor))
        if not found:
            needed = "returns logits, or a tensor of them, for recovery=distill and recipe.label_smoothing"
            raise InvalidSetting("net", type(self.net).__name__, needed)
        return tuple(predictions(value) for value in found)

    def evaluator(self, data: LightningDataModule, split: str) -> Evaluator:
        raise NotImplementedError("a plain task evaluates nothing")


def predictions(logits: Tensor) -> Tensor:
    """Logits as [predictions, classes], so that means are over all predictions.

    Args:
        logits: [B, classes]; of tokens [B, T, classes]; of pixels [B, classes, H, W], or with further dims, as in torch's
            cross_entropy; or scores [B].
    """
    if logits.dim() == 1:
        return logits.unsqueeze(-1)
    return (logits if logits.dim() <= 3 else logits.movedim(1, -1)).flatten(0, -2)
