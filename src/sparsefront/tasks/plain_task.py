"""A user's network, loss and batches as a task, so that every recovery trains them."""

import inspect
import itertools
import logging
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from pytorch_lightning import LightningDataModule
from torch import Tensor, fx, nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, SequentialSampler

from sparsefront.errors import InvalidSetting, failure_reason
from sparsefront.tasks.base import Batch, Evaluator, Optimizes, Task

log = logging.getLogger(__name__)

# A DataLoader with the settings of another one.


def similar_loader(
    loader: DataLoader,
    *,
    batch_sampler: Iterable[list] | None,
    collate_fn: Callable,
    generator: torch.Generator,
    dataset: Any = None,
) -> DataLoader:
    """Over the same data and with workers of the same kind, which make other batches of it.

    Args:
        dataset: another view of the data; None = the loader's own.
        generator: gives the workers of each epoch their seed.
    """
    return DataLoader(
        loader.dataset if dataset is None else dataset,
        batch_sampler=batch_sampler,
        collate_fn=collate_fn,
        generator=generator,
        num_workers=loader.num_workers,
        worker_init_fn=loader.worker_init_fn,
        multiprocessing_context=loader.multiprocessing_context,
        persistent_workers=loader.persistent_workers,
        prefetch_factor=loader.prefetch_factor,
        timeout=loader.timeout,
        in_order=loader.in_order,
        pin_memory=loader.pin_memory,
        pin_memory_device=loader.pin_memory_device,
    )


# The inputs of a network, by the names of its forward's arguments.

Inputs = Tensor | Sequence[Tensor] | Mapping[str, Tensor]
"""What a forward takes: one tensor, several in order, or several by name."""

Plain = bool | int | float | str | None
"""What may stand among them, such as use_cache=False."""


def named_inputs(net: nn.Module, inputs: object, *, argument: str = "example_inputs") -> dict[str, Any]:
    """The same inputs as keyword arguments of `net`.

    Args:
        inputs: `Inputs`; positional ones get the names that `net.forward` gives them.
        argument: what they are called in messages.
    Returns:
        tensors first, of which there is at least one, then plain values.
    Raises:
        InvalidSetting: no tensor, something else than tensors and plain values, or positional ones that the forward does not
            name.
    """
    return inputs_by_name(forward_names(net), inputs, argument=argument)


def inputs_by_name(names: tuple[str, ...] | None, inputs: object, *, argument: str) -> dict[str, Any]:
    """`named_inputs` of a network whose `forward_names` are given."""
    named = _by_name(names, inputs, argument)
    allowed = Tensor | Plain if any(isinstance(value, Tensor) for value in named.values()) else Tensor
    for name, value in named.items():
        if not isinstance(value, allowed):
            raise InvalidSetting(f"{argument}[{name!r}]", type(value).__name__, "must be a tensor")
    if not named:
        raise InvalidSetting(argument, inputs, "holds no tensor: give what the network is called with, such as (x,)")
    return tensors_first(named)


def tensors_first(named: Mapping[str, Any]) -> dict[str, Any]:
    """The same with tensors first: of the first one the size of a batch and its device are read."""
    return dict(sorted(named.items(), key=lambda item: not isinstance(item[1], Tensor)))


def named_inputs_on(net: nn.Module, inputs: object, *, argument: str = "example_inputs") -> dict[str, Any]:
    """`named_inputs` that lie on one device, that of the network's parameters.

    Raises:
        InvalidSetting: as `named_inputs`; names that the forward does not have, or lacks; an empty batch; or tensors on another
            device than the network.
    """
    named = named_inputs(net, inputs, argument=argument)
    _require_names(net, named, argument)
    device = device_of(net)
    first = next(iter(named.values()))
    if first.dim() and len(first) == 0:
        raise InvalidSetting(argument, inputs_in_words(named), "holds an empty batch: give one of at least one sample")
    for name, value in named.items():
        if isinstance(value, Tensor) and value.device != device:
            raise InvalidSetting(f"{argument}[{name!r}]", value.device, f"must be on the network's device, {device}")
    return named


def _require_names(net: nn.Module, named: Mapping[str, Any], argument: str) -> None:
    """Raises InvalidSetting for inputs that the network's forward does not name, and for those that it needs besides."""
    parameters = inspect.signature(net.forward).parameters.values()
    names = forward_names(net) or ()
    if all(parameter.kind is not inspect.Parameter.VAR_KEYWORD for parameter in parameters):
        for name in named:
            if name not in names:
                takes = f"names {', '.join(names)}" if names else "names none of its arguments"
                allowed = f"is no argument of {type(net).__name__}.forward, which {takes}"
                raise InvalidSetting(f"{argument}[{name!r}]", "given", allowed)
    needed = [one.name for one in parameters if one.name in names and one.default is one.empty]
    if lacking := [name for name in needed if name not in named]:
        allowed = f"lacks {', '.join(lacking)}, which {type(net).__name__}.forward needs"
        raise InvalidSetting(argument, inputs_in_words(named), allowed)


def inputs_in_words(inputs: Mapping[Any, Any]) -> str:
    """Inputs by name, for a message: `input torch.float32 [64, 16]`."""
    return ", ".join(
        f"{name} {value.dtype} {list(value.shape)}" if isinstance(value, Tensor) else f"{name} {type(value).__name__}"
        for name, value in inputs.items()
    )


# What a call of the library is given: a network, functions, and settings, none of them as a class instead of an instance.


def require_network(net: object, *, argument: str = "net") -> None:
    """Raises:
    InvalidSetting: something else than a network, one that was compiled into a program, or one whose tensors have no values yet.
    """
    if isinstance(net, type) and issubclass(net, nn.Module):
        raise InvalidSetting(argument, net.__name__, f"is a class: give a network of it, {net.__name__}(...)")
    if not isinstance(net, nn.Module):
        raise InvalidSetting(argument, type(net).__name__, "is a torch.nn.Module")
    # an exported program has a train and an eval of its own, which refuse
    if isinstance(net, torch.jit.ScriptModule) or (isinstance(net, fx.GraphModule) and "eval" in vars(net)):
        kind = "TorchScript" if isinstance(net, torch.jit.ScriptModule) else "an exported program"
        raise InvalidSetting(argument, type(net).__name__, f"is {kind}: give the network that it was made of")
    for name, tensor in itertools.chain(net.named_parameters(), net.named_buffers()):
        if nn.parameter.is_lazy(tensor):
            allowed = f"has weights without a shape ({name}): call it once on a batch before"
            raise InvalidSetting(argument, type(net).__name__, allowed)
        if tensor.is_meta:
            allowed = f"has weights on the meta device ({name}), which have no values: load them first"
            raise InvalidSetting(argument, type(net).__name__, allowed)


def require_callable(argument: str, given: object, *takes: str, allowed: str) -> None:
    """Raises InvalidSetting unless something can be called with so many positional arguments.

    Args:
        takes: what it is called with, for the message.
        allowed: what it is.
    """
    if not callable(given):
        raise InvalidSetting(argument, _shown(given), allowed)
    name = getattr(given, "__name__", type(given).__name__)
    if takes and isinstance(given, type) and issubclass(given, nn.Module | DataLoader):
        raise InvalidSetting(argument, name, f"is a class: give an instance of it, {name}(...)")
    try:
        signature = inspect.signature(given)
    except (TypeError, ValueError):  # of functions in C, which say nothing
        return
    try:
        signature.bind(*takes)
    except TypeError:
        allowed = f"{allowed}; this one cannot be called with ({', '.join(takes)})"
        raise InvalidSetting(argument, name, allowed) from None


def require_instance(argument: str, given: object, kind: type) -> None:
    """Raises InvalidSetting unless something is None or an instance of a class of settings."""
    if given is not None and not isinstance(given, kind):
        raise InvalidSetting(argument, _shown(given), f"is a sf.{kind.__name__}(...), or None")


def _shown(given: object) -> str:
    """A value for a message of one line."""
    if isinstance(given, type):
        return given.__name__
    return repr(given) if isinstance(given, str | int | float | None) else type(given).__name__


@contextmanager
def named_in_errors(argument: str, value: str, said: str) -> Iterator[None]:
    """What fails inside, in a network or a function of the user's, leaves as an InvalidSetting; failures of a device do not.

    Args:
        argument: that is to blame.
        said: what cannot be done with it.
    """
    try:
        yield
    except (InvalidSetting, torch.OutOfMemoryError, torch.AcceleratorError):
        raise
    except (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise InvalidSetting(argument, value, f"{said} ({failure_reason(error)})") from error


def device_of(net: nn.Module) -> torch.device:
    """Where the network's first parameter lies; the CPU where it has none."""
    return next((parameter.device for parameter in net.parameters()), torch.device("cpu"))


def forward_names(net: nn.Module) -> tuple[str, ...] | None:
    """The arguments that the network's forward names; None where it only has **kwargs."""
    parameters = inspect.signature(net.forward).parameters.values()
    by_keyword = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return tuple(parameter.name for parameter in parameters if parameter.kind in by_keyword) or None


def _by_name(names: tuple[str, ...] | None, inputs: object, argument: str) -> dict[str, Any]:
    if isinstance(inputs, Mapping):
        return dict(inputs)
    positional = (inputs,) if isinstance(inputs, Tensor) else inputs
    if not isinstance(positional, Sequence):
        given = type(inputs).__name__
        raise InvalidSetting(argument, given, "is a tensor, a sequence of tensors, or tensors by argument name")
    names = names or ()
    if len(positional) > len(names):
        takes = f"names {', '.join(names)}" if names else "names none of its arguments"
        raise InvalidSetting(argument, f"{len(positional)} tensors", f"the network's forward {takes}")
    return dict(zip(names, positional, strict=False))


# Batches as training loops have them, by the names of the network's arguments.

TARGET = "__target__"
"""Key of what a batch (inputs, target) has beside the inputs."""

Collate = Callable[[list], object]


@dataclass(frozen=True, eq=False)
class NamedBatch:
    """Makes a dict of a batch: (inputs, target), inputs alone, or a mapping as Hugging Face's collators give.

    Args:
        names: of the inputs, as the network's forward has them; workers are sent these, not the network.
        collate: makes the batch of samples.
        argument: what the batches are called in messages.
    """

    names: tuple[str, ...] | None
    collate: Collate
    argument: str

    def __call__(self, samples: list) -> Batch:
        return self.named(self.collate(samples))

    def named(self, batch: object) -> Batch:
        """The batch by name, its target under TARGET.

        Raises:
            InvalidSetting: a batch of another form.
        """
        if isinstance(batch, Mapping):
            return tensors_first(batch)
        if isinstance(batch, Sequence) and len(batch) == 1:
            return inputs_by_name(self.names, batch, argument=self.argument)
        if isinstance(batch, Sequence) and len(batch) == 2:
            inputs, target = batch
            return {**inputs_by_name(self.names, inputs, argument=self.argument), TARGET: target}
        if isinstance(batch, torch.Tensor):
            return inputs_by_name(self.names, batch, argument=self.argument)
        given = f"{type(batch).__name__} of {len(batch)}" if isinstance(batch, Sequence) else type(batch).__name__
        raise InvalidSetting(self.argument, given, "holds batches (inputs, target), inputs alone, or dicts by name")


class NamedBatches(LightningDataModule):
    """A training loader whose batches are dicts.

    Args:
        batches: a DataLoader, whose order and settings stay its own, and whose workers are seeded from its generator, else from
            torch's; of any other iterable, or one over an IterableDataset, copies of all batches are kept in memory.
        net: whose forward names the inputs.
        argument: as of `NamedBatch`.
        most: batches that are asked for; of an iterable without a length no more are read. None: all.
    Raises:
        InvalidSetting: no iterable, an empty one, or one that nothing bounds: see `read_batches`.
    """

    def __init__(self, batches: Iterable, net: nn.Module, *, argument: str, most: int | None = None) -> None:
        super().__init__()
        if isinstance(batches, Tensor):
            raise InvalidSetting(argument, f"a tensor {list(batches.shape)}", "holds batches: give a list of them")
        if isinstance(batches, str | Mapping | type) or not isinstance(batches, Iterable):
            raise InvalidSetting(argument, type(batches).__name__, "is a DataLoader or another iterable of batches")
        streamed = isinstance(batches, DataLoader) and isinstance(batches.dataset, IterableDataset)
        if isinstance(batches, DataLoader) and batches.batch_sampler is not None and not streamed:
            self._loader = batches
            self._collate: Collate = batches.collate_fn
        else:
            read = _Read(read_batches(batches, most, argument=argument))
            sampler = BatchSampler(SequentialSampler(read), batch_size=1, drop_last=False)
            self._loader = DataLoader(read, batch_sampler=sampler)
            self._collate = _first
        if len(self._loader) == 0:
            raise InvalidSetting(argument, "empty", "must give at least one batch")
        self._named = NamedBatch(forward_names(net), self._collate, argument)
        self._seed = _next_seed()

    def train_dataloader(self) -> DataLoader:
        """A fresh loader over the same batches."""
        given = self._loader
        generator = given.generator or torch.Generator().manual_seed(self._seed)
        return similar_loader(given, batch_sampler=given.batch_sampler, collate_fn=self._named, generator=generator)

    def val_dataloader(self) -> DataLoader:
        """Of no batch: a plain training loop validates nothing."""
        warnings.filterwarnings("ignore", message="Total length of `DataLoader` across ranks is zero")
        return DataLoader(_Read([]))


def training_loader(module: LightningDataModule) -> Iterable:
    """What a data module trains on: all that is used of it."""
    module.prepare_data()
    module.setup("fit")
    return module.train_dataloader()


MOST_BATCHES, MOST_BYTES = (
    100_000,
    16 * 2**30,
)  # that are read of an iterable without a length, where nothing else bounds it


def read_batches(batches: Iterable, most: int | None, *, argument: str) -> list:
    """The batches of an iterable in a list, each a copy, since a loader may give the same tensors again with other values in
    them. What is a list or a tuple already is taken as it is.

    Args:
        most: of an iterable without a length; one with a length is read as far as that says.
        argument: what the batches are called in messages.
    Raises:
        InvalidSetting: an iterable without a length that has not ended after MOST_BATCHES or MOST_BYTES, with `most` None.
    """
    if isinstance(batches, list | tuple):
        return list(batches)
    length = _length(batches)
    endless = InvalidSetting(
        argument,
        type(batches).__name__,
        "has no length, and nothing says where to stop: limit it (sf.recover: trainer=sf.TrainerSettings(limit_batches=...); "
        "anywhere: itertools.islice), or give a DataLoader or a list of batches",
    )
    if length is None and most is None and isinstance(batches, itertools.cycle):
        raise endless
    read: list = []
    size, stop = 0, most if length is None else length
    for batch in batches:
        if len(read) == stop:  # only one with a length is asked for a batch more than it has
            log.warning("%s has a length of %d and gives more batches: they are left out", argument, length)
            break
        read.append(_copied(batch))
        size += _bytes(batch)
        if length is None and len(read) == most:
            break
        if length is None and most is None and (len(read) > MOST_BATCHES or size > MOST_BYTES):
            raise endless
    return read


def _length(batches: Iterable) -> int | None:
    """What an iterable says of itself; None where it says nothing, or 0, which is told from what it gives."""
    try:
        return len(batches) or None  # type: ignore[arg-type]  # a TypeError is an answer
    except (TypeError, NotImplementedError):
        return None


def _copied(value: Any) -> Any:
    """With tensors and arrays of its own."""
    if isinstance(value, Tensor):
        return value.clone()
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, Mapping):
        return {key: _copied(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        parts = [_copied(part) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    return value


def _bytes(value: Any) -> int:
    if isinstance(value, Tensor | np.ndarray):
        return value.nbytes
    parts = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    return sum(map(_bytes, parts))


class _Read(Dataset):
    """Batches that were read already."""

    def __init__(self, batches: list) -> None:
        self.batches = batches

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, index: int) -> object:
        return self.batches[index]


def _next_seed() -> int:
    """What a DataLoader without a generator would draw next, from torch's own, which does not move."""
    generator = torch.Generator()
    generator.set_state(torch.get_rng_state())
    return int(torch.empty((), dtype=torch.int64).random_(generator=generator))


def _first(samples: list) -> object:
    return samples[0]


Loss = Callable[[Any, Any], Tensor]
"""(output of the network, target of the batch) -> mean loss, a scalar; of a dict batch the target is the whole batch."""


def require_gradient(loss: Tensor) -> None:
    """Raises InvalidSetting where a loss does not follow from the weights, such as the number of right answers."""
    if not loss.requires_grad:
        allowed = "must have a gradient: computed from the output, which is not detached, counted or rounded"
        raise InvalidSetting("loss", f"{loss.dtype} without a gradient", allowed)


class PlainTask(Task):
    """Trains any network; evaluates nothing.

    Args:
        net: called with the inputs of a batch by name.
        loss: `Loss`; None: the network's output holds it under `loss`, as Hugging Face's do.
        optimization: needed to train.
        argument: what the batches are called in messages.
    """

    kind: ClassVar[str] = "plain"

    def __init__(
        self,
        net: nn.Module,
        loss: Loss | None,
        optimization: Optimizes | None = None,
        *,
        argument: str = "train_dataloader",
    ) -> None:
        super().__init__(net, optimization)
        self._names, self._loss, self._argument = forward_names(net), loss, argument

    @classmethod
    def for_dataset(cls, net: nn.Module, dataset: object, optimization: Optimizes | None = None) -> "PlainTask":
        raise NotImplementedError("a plain task is made of a network and a loss")

    def net_inputs(self, batch: Batch) -> Batch:
        wanted = batch.keys() - {TARGET} if self._names is None else set(self._names)
        return {name: value for name, value in batch.items() if name in wanted}

    def call(self, net: nn.Module, inputs: Batch) -> Any:
        argument, value = self._argument, f"a batch of {inputs_in_words(inputs) or 'nothing that the network takes'}"
        if net is not self.net:
            argument, value = "dense_net", type(net).__name__
        with named_in_errors(argument, value, "the network cannot be called with it"):
            return net(**inputs)

    def training_step(self, batch: Batch, batch_index: int) -> Tensor:
        loss = super().training_step(batch, batch_index)
        require_gradient(loss)
        return loss

    def loss(self, output: Any, batch: Batch) -> Tensor:
        found = self._loss_of(output, batch)
        if not isinstance(found, Tensor) or found.numel() != 1:
            given = list(found.shape) if isinstance(found, Tensor) else type(found).__name__
            raise InvalidSetting("loss", given, "must be the mean over the batch, a tensor of one number")
        return found

    def _loss_of(self, output: Any, batch: Batch) -> Any:
        if self._loss is not None:
            name = getattr(self._loss, "__name__", type(self._loss).__name__)
            given = "(output, target)" if TARGET in batch else f"(output, batch), as {self._argument} gives no targets"
            with named_in_errors("loss", name, f"fails when called with {given}"):
                return self._loss(output, batch[TARGET] if TARGET in batch else batch)
        found = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
        if found is None:
            allowed = "may be left out only where the network returns its loss; give loss(output, target)"
            raise InvalidSetting("loss", None, allowed)
        return found

    def logits(self, output: Any) -> tuple[Tensor, ...]:
        while isinstance(output, list | tuple) and len(output) == 1 and not hasattr(output, "_fields"):
            output = output[0]
        if isinstance(output, Tensor):
            return (predictions(output),)
        named = output._asdict() if hasattr(output, "_asdict") else output
        named = dict(named) if isinstance(named, Mapping) else getattr(named, "__dict__", {})
        if (
            "logits" in named
        ):  # auxiliary heads, which torchvision's networks have in training mode alone, predict the same
            named = {name: value for name, value in named.items() if not name.startswith("aux")}
        found = tuple(value for name, value in named.items() if name.endswith("logits") and isinstance(value, Tensor))
        if not found:
            needed = (
                f"returned {type(output).__name__}, which does not say what its logits are: recovery=distill, cast and "
                "recipe.label_smoothing need a tensor, or a dict, dataclass or named tuple with logits"
            )
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
