"""The batches that scores are computed from."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial

from torch import Tensor, nn

from sparsefront.errors import InvalidSetting
from sparsefront.importance.base import Importance
from sparsefront.library.batches import NamedBatch, NamedBatches
from sparsefront.library.inputs import device_of, forward_names
from sparsefront.library.plain_task import PlainTask
from sparsefront.tasks.base import Batch

Batches = Iterable | Callable[[], Iterable]
"""Batches as a training loop has them; or a function that opens a loader of such, as this package's data do."""


@dataclass(frozen=True, eq=False)
class Calibration:
    """Opens the loader anew at each call."""

    net: nn.Module
    open_loader: Callable[[], Iterable[Batch]]

    def __call__(self) -> Iterator[Batch]:
        return iter(self.open_loader())

    def first_inputs(self) -> dict[str, Tensor]:
        """What the network is called with for the first batch, on its device."""
        batch = PlainTask(self.net, None).net_inputs(next(iter(self())))
        return {name: value.to(device_of(self.net)) for name, value in batch.items() if isinstance(value, Tensor)}


def open_calibration(net: nn.Module, batches: Batches | None, importance: Importance) -> Calibration:
    """The loader of calibration batches.

    Raises:
        InvalidSetting: none are given, and the importance needs them; or they have another form.
    """
    if callable(batches):
        by_name = NamedBatch(forward_names(net), list, argument="calibration")
        return Calibration(net, partial(_opened, batches, by_name))
    if batches is not None:
        return Calibration(net, NamedBatches(batches, net, argument="calibration").train_dataloader)
    if importance.source in ("gradients", "inputs"):
        allowed = f"importance={importance.name} comes from {importance.source}: give batches, such as a DataLoader"
        raise InvalidSetting("calibration", None, allowed)
    return Calibration(net, list)


def _opened(open_loader: Callable[[], Iterable], by_name: NamedBatch) -> Iterator[Batch]:
    return map(by_name.named, open_loader())
