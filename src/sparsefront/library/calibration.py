"""The batches that scores are computed from."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain

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
    """The batches that a function opens a loader of, in the forms of a training loop.

    Raises:
        InvalidSetting: it returns no loader, or one without a batch, such as an iterator that was read before.
    """
    loader = open_loader()
    if isinstance(loader, str) or not isinstance(loader, Iterable):
        allowed = "opens a DataLoader or another iterable of batches at each call"
        raise InvalidSetting("calibration", f"a function that returns {type(loader).__name__}", allowed)
    batches = iter(loader)
    first = next(batches, None)
    if first is None:
        allowed = "opens a loader anew at each call: this one is empty"
        raise InvalidSetting("calibration", f"a function that returns {type(loader).__name__}", allowed)
    return map(by_name.named, chain([first], batches))
