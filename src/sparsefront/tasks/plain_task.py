"""Wrap a user's network, loss and batches as a task that every recovery can train."""

import copy
import inspect
import itertools
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor, fx, nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, SequentialSampler

from sparsefront.errors import InvalidSetting, failure_reason
from sparsefront.networks import first_non_finite
from sparsefront.tasks.base import Batch, Evaluator, Optimizes, Task

if TYPE_CHECKING:
    from pytorch_lightning import LightningDataModule

log = logging.getLogger(__name__)


def similar_loader(
    loader: DataLoader,
    *,
    batch_sampler: Iterable[list] | None,
    collate_fn: Callable,
    generator: torch.Generator,
    dataset: Any = None,
) -> DataLoader:
    """A DataLoader with the settings and workers of another one, but other batches.

    Args:
        dataset: another view of the data; None = the loader's own.
        generator: seeds the workers of each epoch.
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


def iterates_itself(loader: DataLoader) -> bool:
    """Whether a DataLoader's own class decides what it yields, so that one made of its parts would yield something else."""
    own = ("__iter__", "__len__", "_get_iterator", "_index_sampler")
    return any(getattr(type(loader), name) is not getattr(DataLoader, name) for name in own)


def _is_plain(loader: DataLoader) -> bool:
    """Whether one made of its parts, over rows with a number, yields the same."""
    rows = not isinstance(loader.dataset, IterableDataset) and loader.batch_sampler is not None
    return rows and not iterates_itself(loader)


Inputs = Tensor | Sequence[Tensor] | Mapping[str, Tensor]
"""Arguments of a forward: one tensor, several in order, or several by name."""

Plain = bool | int | float | str | None
"""Other values that are allowed among them, such as use_cache=False."""


def name_inputs(net: nn.Module, inputs: object, *, argument: str = "example_inputs") -> dict[str, Any]:
    """Convert inputs to keyword arguments of `net`.

    Args:
        inputs: `Inputs`; positional ones are named after the parameters of `net.forward`.
        argument: name of the inputs in messages.
    Returns:
        tensors first (at least one), then plain values.
    Raises:
        InvalidSetting: no tensor, a value that is neither tensor nor plain, or positional inputs that the forward does not
            name.
    """
    return inputs_by_name(forward_names(net), inputs, argument=argument)


def inputs_by_name(names: tuple[str, ...] | None, inputs: object, *, argument: str) -> dict[str, Any]:
    """`name_inputs` for known `forward_names`."""
    by_name = _by_name(names, inputs, argument)
    allowed = Tensor | Plain if any(isinstance(value, Tensor) for value in by_name.values()) else Tensor
    for name, value in by_name.items():
        if not isinstance(value, allowed):
            raise InvalidSetting(f"{argument}[{name!r}]", type(value).__name__, "must be a tensor")
    if not by_name:
        raise InvalidSetting(argument, inputs, "holds no tensor: give what the network is called with, such as (x,)")
    return tensors_first(by_name)


def tensors_first(named: Mapping[str, Any]) -> dict[str, Any]:
    """Sort tensors first: batch size and device are read from the first one."""
    return dict(sorted(named.items(), key=lambda item: not isinstance(item[1], Tensor)))


def name_inputs_on(net: nn.Module, inputs: object, *, argument: str = "example_inputs") -> dict[str, Any]:
    """`name_inputs`, checked to be on the device of the network's parameters.

    Raises:
        InvalidSetting: as in `name_inputs`; unknown or missing arguments; an empty batch; or tensors on another device than
            the network.
    """
    by_name = name_inputs(net, inputs, argument=argument)
    _require_names(net, by_name, argument)
    device = device_of(net)
    first = next(iter(by_name.values()))
    if first.dim() and len(first) == 0:
        raise InvalidSetting(
            argument, inputs_in_words(by_name), "holds an empty batch: give one of at least one sample"
        )
    for name, value in by_name.items():
        if isinstance(value, Tensor) and value.device != device:
            raise InvalidSetting(f"{argument}[{name!r}]", value.device, f"must be on the network's device, {device}")
    require_finite_inputs(by_name, argument)
    return by_name


def _require_names(net: nn.Module, named: Mapping[str, Any], argument: str) -> None:
    """Raise InvalidSetting for inputs that the network's forward does not name, and for missing required ones."""
    parameters = inspect.signature(net.forward).parameters.values()
    names = forward_names(net) or ()
    if all(parameter.kind is not inspect.Parameter.VAR_KEYWORD for parameter in parameters):
        for name in named:
            if name not in names:
                takes = f"names {', '.join(names)}" if names else "names none of its arguments"
                allowed = f"is no argument of {type(net).__name__}.forward, which {takes}"
                raise InvalidSetting(f"{argument}[{name!r}]", "given", allowed)
    needed = [one.name for one in parameters if one.name in names and one.default is one.empty]
    lacking = [name for name in needed if name not in named]
    if lacking:
        allowed = f"lacks {', '.join(lacking)}, which {type(net).__name__}.forward needs"
        raise InvalidSetting(argument, inputs_in_words(named), allowed)


def inputs_in_words(inputs: Mapping[Any, Any]) -> str:
    """Format named inputs for a message: `input torch.float32 [64, 16]`."""
    return ", ".join(
        f"{name} {value.dtype} {list(value.shape)}" if isinstance(value, Tensor) else f"{name} {type(value).__name__}"
        for name, value in inputs.items()
    )


# Check arguments of the library: networks, functions, and settings (instances, not classes).


def require_network(net: object, *, argument: str = "net") -> None:
    """Raises:
    InvalidSetting: not a network, a network compiled to a program, or one with uninitialized tensors.
    """
    if isinstance(net, type) and issubclass(net, nn.Module):
        raise InvalidSetting(argument, net.__name__, f"is a class: give a network of it, {net.__name__}(...)")
    if not isinstance(net, nn.Module):
        raise InvalidSetting(argument, type(net).__name__, "is a torch.nn.Module")
    # exported programs override train and eval with methods that raise
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


def require_finite_weights(net: nn.Module) -> None:
    """Raise InvalidSetting for a parameter with NaN or infinity; names it."""
    bad_tensor = first_non_finite(dict(net.named_parameters()))
    if bad_tensor is not None:
        raise InvalidSetting(
            "net", type(net).__name__, f"must have finite weights: {bad_tensor.name} holds {bad_tensor.counts}"
        )


def require_finite_inputs(inputs: Mapping[str, Any], argument: str) -> None:
    """Raise InvalidSetting for an input with NaN or infinity; names it. Masks may have infinities, which attention adds."""
    tensors = {name: one for name, one in inputs.items() if isinstance(one, Tensor) and "mask" not in name}
    bad_tensor = first_non_finite(tensors)
    if bad_tensor is not None:
        words = inputs_in_words({name: one for name, one in inputs.items() if name != TARGET})
        name = "the target" if bad_tensor.name == TARGET else bad_tensor.name
        raise InvalidSetting(argument, words, f"must be finite: {name} holds {bad_tensor.counts}")


def require_callable(argument: str, given: object, *takes: str, allowed: str) -> None:
    """Raise InvalidSetting unless the argument can be called with that many positional arguments.

    Args:
        takes: names of the arguments, for the message.
        allowed: description of the callable.
    """
    if not callable(given):
        raise InvalidSetting(argument, _format_value(given), allowed)
    name = getattr(given, "__name__", type(given).__name__)
    if takes and isinstance(given, type) and issubclass(given, nn.Module | DataLoader):
        raise InvalidSetting(argument, name, f"is a class: give an instance of it, {name}(...)")
    try:
        signature = inspect.signature(given)
    except (TypeError, ValueError):  # C functions have no signature
        return
    try:
        signature.bind(*takes)
    except TypeError:
        allowed = f"{allowed}; this one cannot be called with ({', '.join(takes)})"
        raise InvalidSetting(argument, name, allowed) from None


def require_instance(argument: str, given: object, kind: type) -> None:
    """Raise InvalidSetting unless the argument is None or an instance of a settings class."""
    if given is not None and not isinstance(given, kind):
        raise InvalidSetting(argument, _format_value(given), f"is a sf.{kind.__name__}(...), or None")


def _format_value(given: object) -> str:
    """Format a value for a message of one line."""
    if isinstance(given, type):
        return given.__name__
    return repr(given) if isinstance(given, str | int | float | None) else type(given).__name__


@contextmanager
def translate_errors(argument: str, value: str, said: str) -> Iterator[None]:
    """Context that turns errors of a user's network or function into InvalidSetting, except device errors.

    Args:
        argument: the argument to blame.
        said: what cannot be done with it.
    """
    try:
        yield
    except (InvalidSetting, torch.OutOfMemoryError, torch.AcceleratorError):
        raise
    except (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise InvalidSetting(argument, value, f"{said} ({failure_reason(error)})") from error


def device_of(net: nn.Module) -> torch.device:
    """Device of the network's first parameter; the CPU if it has none."""
    return next((parameter.device for parameter in net.parameters()), torch.device("cpu"))


def forward_names(net: nn.Module) -> tuple[str, ...] | None:
    """Names of the parameters of the network's forward; None if it only has **kwargs."""
    parameters = inspect.signature(net.forward).parameters.values()
    by_keyword = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return tuple(parameter.name for parameter in parameters if parameter.kind in by_keyword) or None


def _by_name(names: tuple[str, ...] | None, inputs: object, argument: str) -> dict[str, Any]:
    if isinstance(inputs, Mapping):
        return dict(inputs)
    positional = (inputs,) if isinstance(inputs, Tensor) else inputs
    if not isinstance(positional, Sequence):
        form = type(inputs).__name__
        raise InvalidSetting(argument, form, "is a tensor, a sequence of tensors, or tensors by argument name")
    names = names or ()
    if len(positional) > len(names):
        takes = f"names {', '.join(names)}" if names else "names none of its arguments"
        raise InvalidSetting(argument, f"{len(positional)} tensors", f"the network's forward {takes}")
    return dict(zip(names, positional, strict=False))


TARGET = "__target__"
"""Key of the target of a batch (inputs, target)."""

Collate = Callable[[list], object]


@dataclass(frozen=True, eq=False)
class NamedBatch:
    """Converts a batch to a dict: (inputs, target), inputs only, or a mapping as from Hugging Face's collators.

    Args:
        names: of the inputs, as in the network's forward; sent to workers instead of the network.
        collate: makes a batch from samples.
        argument: name of the batches in messages.
    """

    names: tuple[str, ...] | None
    collate: Collate
    argument: str

    def __call__(self, samples: list) -> Batch:
        return self.named(self.collate(samples))

    def named(self, batch: object) -> Batch:
        """The batch by name, with its target under TARGET.

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
        form = f"{type(batch).__name__} of {len(batch)}" if isinstance(batch, Sequence) else type(batch).__name__
        raise InvalidSetting(self.argument, form, "holds batches (inputs, target), inputs alone, or dicts by name")


class NamedBatches:
    """A training loader whose batches are dicts; `LightningBatches` for Lightning.

    Args:
        batches: a plain DataLoader over a dataset with a length, which keeps its order and settings, with workers seeded from its
            generator, else from torch's; any other iterable is iterated itself.
        net: its forward names the inputs.
        argument: as in `NamedBatch`.
        most: maximum number of batches that are copied to memory. None = all.
        anew: iterate an iterable with a length anew for each epoch, instead of copying its batches to memory as those of
            others, which yields the same ones each time.
    Raises:
        InvalidSetting: not an iterable, an empty one, or an unbounded one: see `read_batches`.
    """

    def __init__(
        self, batches: Iterable, net: nn.Module, *, argument: str, most: int | None = None, anew: bool = False
    ) -> None:
        super().__init__()
        if isinstance(batches, Tensor):
            raise InvalidSetting(argument, f"a tensor {list(batches.shape)}", "holds batches: give a list of them")
        if isinstance(batches, str | Mapping | type) or not isinstance(batches, Iterable):
            raise InvalidSetting(argument, type(batches).__name__, "is a DataLoader or another iterable of batches")
        length = _length(batches)
        if isinstance(batches, DataLoader) and length and _is_plain(batches):
            self._loader = batches
            self._collate: Collate = batches.collate_fn
        else:
            read: _Iterated | _Read
            if anew and length and not isinstance(batches, list | tuple | Iterator):
                read = _Iterated(batches, length, argument)
            else:
                read = _Read(read_batches(batches, most, argument=argument))
            sampler = BatchSampler(SequentialSampler(read), batch_size=1, drop_last=False)
            generator = batches.generator if isinstance(batches, DataLoader) else None
            self._loader = DataLoader(read, batch_sampler=sampler, generator=generator)
            self._collate = _first
        if len(self._loader) == 0:
            raise InvalidSetting(argument, "empty", "must give at least one batch")
        self._named = NamedBatch(forward_names(net), self._collate, argument)
        self._seed = _next_seed()

    @property
    def opens_once(self) -> bool:
        """Whether two loaders at a time may disturb each other, because a user's `__iter__` is called for both."""
        return isinstance(self._loader.dataset, _Iterated)

    def train_dataloader(self) -> DataLoader:
        """A new loader over the same batches."""
        loader = self._loader
        generator = loader.generator or torch.Generator().manual_seed(self._seed)
        return similar_loader(loader, batch_sampler=loader.batch_sampler, collate_fn=self._named, generator=generator)


def training_loader(module: "LightningDataModule") -> Iterable:
    """The training loader of a data module, the only part that is used."""
    module.prepare_data()
    module.setup("fit")
    return module.train_dataloader()


MOST_BATCHES, MOST_BYTES = (100_000, 16 * 2**30)  # limits for iterables without a length, if nothing else bounds them


def read_batches(batches: Iterable, most: int | None, *, argument: str) -> list:
    """Read the batches of an iterable into a list of copies (a loader may reuse its tensors); lists and tuples are not copied.

    Args:
        most: maximum number of batches; an iterable with a length is read to that length at most.
        argument: name of the batches in messages.
    Raises:
        InvalidSetting: `most` is None and an iterable without a length did not end after MOST_BATCHES or MOST_BYTES.
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
    size = 0
    for batch in batches:
        if len(read) == length:  # only reached if it yields more than its length
            log.warning("%s has a length of %d and gives more batches: they are left out", argument, length)
            break
        read.append(_copy(batch))
        size += _bytes(batch)
        if len(read) == most:
            break
        if length is None and most is None and (len(read) > MOST_BATCHES or size > MOST_BYTES):
            raise endless
    return read


def _length(batches: Iterable) -> int | None:
    """Length of an iterable; None if it has none, or says 0, which reading it will confirm."""
    try:
        return len(batches) or None  # type: ignore[arg-type]  # a TypeError is an answer
    except (TypeError, NotImplementedError):
        return None


def _copy(value: Any) -> Any:
    """Copy a value, including its tensors and arrays."""
    if isinstance(value, Tensor):
        return value.clone()
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, Mapping):
        return {key: _copy(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        parts = [_copy(part) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    return value


def _bytes(value: Any) -> int:
    if isinstance(value, Tensor | np.ndarray):
        return value.nbytes
    parts = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    return sum(map(_bytes, parts))


class _Read(Dataset):
    """Dataset of batches in memory."""

    def __init__(self, batches: list) -> None:
        self.batches = batches

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, index: int) -> object:
        return self.batches[index]


class _Iterated(Dataset):
    """The batches of an iterable with a length, in order; it is iterated anew for each first one.

    Raises:
        InvalidSetting: it ends before its length.
    """

    def __init__(self, batches: Iterable, length: int, argument: str) -> None:
        self.batches, self.length, self.argument = batches, length, argument
        self._iterator: Iterator = iter(())
        self._next = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> object:
        if index < self._next:
            self._iterator, self._next = iter(self.batches), 0
        for batch in self._iterator:
            self._next += 1
            if self._next > index:
                return _copy(batch)
        allowed = f"has a length of {self.length} and gave {self._next} batches: each iteration must give that many"
        raise InvalidSetting(self.argument, type(self.batches).__name__, allowed)


def _next_seed() -> int:
    """The seed that a DataLoader without a generator would draw next from torch's generator, without advancing it."""
    generator = torch.Generator()
    generator.set_state(torch.get_rng_state())
    return int(torch.empty((), dtype=torch.int64).random_(generator=generator))


def _first(samples: list) -> object:
    return samples[0]


Loss = Callable[[Any, Any], Tensor]
"""(network output, batch target) -> scalar mean loss; for a dict batch the target is the whole batch."""


def module_of(loss: Loss | None) -> nn.Module | None:
    """The module that a loss is, or whose method it is; its parameters are trained with the network."""
    owner = loss if isinstance(loss, nn.Module) else getattr(loss, "__self__", None)
    return owner if isinstance(owner, nn.Module) else None


def leaves_of(loss: Tensor) -> list[Tensor]:
    """The tensors whose gradients a backward pass from a loss would accumulate."""
    leaves, seen, ahead = [], set(), [loss.grad_fn]
    while ahead:
        node = ahead.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        ahead += [before for before, _ in node.next_functions]
        leaf = getattr(node, "variable", None)
        if isinstance(leaf, Tensor):
            leaves.append(leaf)
    return leaves


def require_gradient(loss: Tensor) -> None:
    """Raise InvalidSetting if a loss does not depend on the weights, such as a number of correct answers."""
    if not loss.requires_grad:
        allowed = "must have a gradient: computed from the output, which is not detached, counted or rounded"
        raise InvalidSetting("loss", f"{loss.dtype} without a gradient", allowed)


class PlainTask(Task):
    """The task of any network with a loss; evaluates nothing. `LightningPlainTask` trains.

    Args:
        net: called with the named inputs of a batch.
        loss: `Loss`; None: the network's output has it as `loss`, as Hugging Face's do.
        optimization: required for training.
        argument: name of the batches in messages.
        class_dims: see `class_dims`; None: -1, and 1 of four or more dims.
    """

    kind: ClassVar[str] = "plain"

    def __init__(
        self,
        net: nn.Module,
        loss: Loss | None,
        optimization: Optimizes | None = None,
        *,
        argument: str = "train_dataloader",
        class_dims: "ClassDims | None" = None,
    ) -> None:
        super().__init__(net, optimization)
        self._names, self._loss, self._argument = forward_names(net), loss, argument
        self.loss_module = module_of(loss)
        self._class_dims = class_dims

    @classmethod
    def for_dataset(cls, net: nn.Module, dataset: object, optimization: Optimizes | None = None) -> "PlainTask":
        raise NotImplementedError("a plain task is made of a network and a loss")

    def net_inputs(self, batch: Batch) -> Batch:
        input_names = batch.keys() - {TARGET} if self._names is None else set(self._names)
        return {name: value for name, value in batch.items() if name in input_names}

    def call(self, net: nn.Module, inputs: Batch) -> Any:
        argument, value = self._argument, f"a batch of {inputs_in_words(inputs) or 'nothing that the network takes'}"
        if net is not self.net:
            argument, value = "dense_net", type(net).__name__
        with translate_errors(argument, value, "the network cannot be called with it"):
            return net(**inputs)

    def get_trained(self) -> nn.Module:
        return self.net if self.loss_module is None else nn.ModuleList([self.net, self.loss_module])

    def loss(self, output: Any, batch: Batch) -> Tensor:
        value = self._loss_of(output, batch)
        if not isinstance(value, Tensor) or value.numel() != 1:
            form = list(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise InvalidSetting("loss", form, "must be the mean over the batch, a tensor of one number")
        return value

    def _loss_of(self, output: Any, batch: Batch) -> Any:
        if self._loss is not None:
            name = getattr(self._loss, "__name__", type(self._loss).__name__)
            arguments = (
                "(output, target)" if TARGET in batch else f"(output, batch), as {self._argument} gives no targets"
            )
            with translate_errors("loss", name, f"fails when called with {arguments}"):
                return self._loss(output, batch[TARGET] if TARGET in batch else batch)
        value = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
        if value is None:
            allowed = "may be left out only where the network returns its loss; give loss(output, target)"
            raise InvalidSetting("loss", None, allowed)
        return value

    def logits(self, output: Any) -> tuple[Tensor, ...]:
        by_name = self.name_logits(output)
        dims = self._class_dims or {}
        return tuple(predictions(value, dims.get(name, usual_dim(value))) for name, value in by_name.items())

    def name_logits(self, output: Any) -> dict[str, Tensor]:
        """The tensors of an output that are logits, by name; of one tensor, the name is empty.

        Raises:
            InvalidSetting: nothing says which are.
        """
        output = _alone(output)
        if isinstance(output, Tensor):
            return {"": output}
        fields = _fields_of(output)
        if (
            "logits" in fields
        ):  # auxiliary heads, which torchvision's networks have only in training mode, predict the same
            fields = {name: value for name, value in fields.items() if not name.startswith("aux")}
        output_logits = {
            name: value for name, value in fields.items() if name.endswith("logits") and isinstance(value, Tensor)
        }
        if not output_logits:
            needed = (
                f"returned {type(output).__name__}, which does not say what its logits are: recovery=distill and cast need a "
                "tensor, or a dict, dataclass or named tuple with logits"
            )
            raise InvalidSetting("net", type(self.net).__name__, needed)
        return output_logits

    def class_dims(self, output: Any, batch: Batch) -> "ClassDims":
        """Name of each of the logits -> the dim of its classes: the one along which a constant, another one for each prediction,
        leaves the loss as it is, as in a softmax, or along which they are log-probabilities. None: there is none, as for scores
        and for several labels at once.

        Args:
            output: what the network returned for this batch in training mode.
        """
        problem = getattr(getattr(self.net, "config", None), "problem_type", None)
        dims: dict[str, int | None] = {}
        for name, logits in self.name_logits(output).items():
            candidates = dict.fromkeys((usual_dim(logits), *((-1, 1) if logits.dim() > 2 else ())))
            if self._loss is None:  # the network's own, which Hugging Face's choose by this setting
                plain = problem in ("regression", "multi_label_classification")
                dims[name] = None if plain else usual_dim(logits)
            else:
                dims[name] = next(
                    (
                        dim
                        for dim in candidates
                        if dim is not None and self._ignores_constants(output, batch, name, dim)
                    ),
                    None,
                )
        return dims

    def _ignores_constants(self, output: Any, batch: Batch, name: str, dim: int) -> bool:
        """Whether the loss is the same after adding constants along this dim; tried in both directions, since one of them changes
        any loss that is convex and not constant.
        """
        logits = self.name_logits(output)[name]
        if float(logits.float().logsumexp(dim).abs().max()) < 1e-2:
            return True  # log-probabilities, of which the softmax is what they say
        shape = [1 if place == dim % logits.dim() else size for place, size in enumerate(logits.shape)]
        constants = 1 + torch.rand(shape, generator=torch.Generator().manual_seed(0)).to(logits)
        base = self.loss(output, batch).float()
        shifted = [self.loss(_with_logits(output, name, logits + sign * constants), batch).float() for sign in (1, -1)]
        tolerance = (1e-4 if logits.dtype in (torch.float32, torch.float64) else 2e-2) * max(1.0, float(base.abs()))
        return all(float((loss - base).abs()) <= tolerance for loss in shifted)

    def evaluator(self, data: "LightningDataModule", split: str) -> Evaluator:
        raise NotImplementedError("a plain task evaluates nothing")


ClassDims = Mapping[str, int | None]
"""Name of logits -> the dim of their classes; None: each is a score of its own."""


def _alone(output: Any) -> Any:
    """The only entry of tuples and lists of one."""
    while isinstance(output, list | tuple) and len(output) == 1 and not hasattr(output, "_fields"):
        output = output[0]
    return output


def _fields_of(output: Any) -> dict[str, Any]:
    fields = output._asdict() if hasattr(output, "_asdict") else output
    return dict(fields) if isinstance(fields, Mapping) else getattr(fields, "__dict__", {})


def _with_logits(output: Any, name: str, logits: Tensor) -> Any:
    """A copy of an output with other logits."""
    if _alone(output) is not output:
        return type(output)([_with_logits(output[0], name, logits)])
    if isinstance(output, Tensor):
        return logits
    if hasattr(output, "_replace"):
        return output._replace(**{name: logits})
    changed = copy.copy(output)
    if isinstance(changed, MutableMapping):
        changed[name] = logits
    else:
        object.__setattr__(changed, name, logits)
    return changed


def usual_dim(logits: Tensor) -> int | None:
    """The dim of the classes of [B, classes], [B, T, classes] for tokens, and [B, classes, H, W] or more dims for pixels; None of
    scores [B] and [B, 1].
    """
    if logits.dim() < 2 or logits.shape[-1] == 1 == logits[0].numel():
        return None
    return -1 if logits.dim() <= 3 else 1


def predictions(logits: Tensor, dim: int | None) -> Tensor:
    """Reshape logits to [predictions, classes], so that means are over all predictions; without classes to [scores, 1]."""
    return logits.reshape(-1, 1) if dim is None else logits.movedim(dim, -1).flatten(0, -2)
