"""What is asked of any network: finite weights, its calls while it runs, its train and eval modes, and fewer blocks."""

import copy
import hashlib
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.hooks import RemovableHandle

from sparsefront.errors import InvalidSetting


def layer_weight(layer: nn.Module) -> Tensor:
    """The weight of a layer: Linear [N, K], Conv2d [C_out, C_in, kh, kw]."""
    weight = layer.weight
    assert isinstance(weight, Tensor)
    return weight


def unwrapped(net: Any) -> Any:
    """The network in `torch.compile`, DataParallel and DistributedDataParallel, in any nesting, so that its layers have the names
    of its own; anything else as it is.
    """
    while isinstance(net, nn.Module):
        if isinstance(net, nn.DataParallel | nn.parallel.DistributedDataParallel):
            net = net.module
        elif "_orig_mod" in net._modules:
            net = net._modules["_orig_mod"]
        else:
            break
    return net


def load_state(net: nn.Module, weights: Mapping[str, Tensor], *, strict: bool = True) -> tuple[list[str], list[str]]:
    """`load_state_dict` of weights from a file, which keeps no versions of modules: they are taken to be of the network's own.

    Without a version some modules, such as torchvision's MNASNet, refuse theirs.

    Args:
        strict: all keys must be there, and no others.
    Returns:
        keys that are missing, and keys that the network does not have.
    Raises:
        RuntimeError: the weights do not fit.
    """
    content = OrderedDict(weights)
    content._metadata = net.state_dict()._metadata  # type: ignore[attr-defined]
    missing, unexpected = net.load_state_dict(content, strict=strict)
    return missing, unexpected


# Tensors that must be finite, scores among them, and the first that is not.


class NonFinite(NamedTuple):
    """A tensor with NaN or infinity: its name, and in words how many of each it holds."""

    name: str
    counts: str


def first_non_finite(tensors: Mapping[str, Tensor]) -> NonFinite | None:
    """The first tensor that holds NaN or infinity, in the order of the mapping; None where all are finite.

    Args:
        tensors: any shape and device; those of integers and bools are always finite.
    """
    for name, values in tensors.items():
        if values.numel() == 0 or not values.is_floating_point():
            continue
        if values.element_size() == 1:  # torch orders no 8-bit floats
            values = values.float()
        # The extremes carry NaN and infinity along: no temporary in the size of the tensor.
        if not torch.isfinite(torch.stack(torch.aminmax(values.detach()))).all():
            nans, infinities = int(values.isnan().sum()), int(values.isinf().sum())
            return NonFinite(name, f"{nans} NaN and {infinities} infinite of {values.numel()}")
    return None


def require_finite(scores: Mapping[str, Tensor]) -> None:
    """Raise ValueError naming the first layer whose scores hold NaN or infinity.

    A NaN compares false with every threshold, so it would be pruned or kept at random places without a sound.
    """
    if (found := first_non_finite(scores)) is not None:
        raise ValueError(f"the importance of {found.name} is not finite: {found.counts} scores")


# sha256 of named tensors: weights or masks.


def tensors_digest(tensors: Mapping[str, Tensor]) -> str:
    """sha256 in hexadecimal over name, dtype, shape and bytes of every tensor, by name."""
    hashed = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        hashed.update(f"{name}\0{tensor.dtype}\0{list(tensor.shape)}\0".encode())
        hashed.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy())
    return hashed.hexdigest()


def network_in_words(net: nn.Module) -> str:
    """What a network is built of: its modules, and shapes, dtypes and device of its tensors; the same of those that are alike."""
    tensors = (*net.named_parameters(), *net.named_buffers())
    return "\n".join(
        (repr(net), *(f"{name} {tensor.dtype} {list(tensor.shape)} {tensor.device}" for name, tensor in tensors))
    )


# Hooks on modules, which are called with a module's own forward alone: what stands in for it would drop them.


def has_forward_hooks(module: nn.Module) -> bool:
    """Whether something sees or changes what this module is given or gives, its parts aside."""
    return bool(module._forward_hooks or module._forward_pre_hooks)


# Seeing how modules are called, and what they return, while a network runs.


@contextmanager
def before_forward(
    modules: Mapping[str, nn.Module], see: Callable[[str, tuple[Any, ...], dict[str, Any]], None]
) -> Iterator[None]:
    """While open, `see(name, args, kwargs)` is called before every forward of these modules, with what they are given."""

    def hook(name: str, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        see(name, args, kwargs)

    with _removed(
        module.register_forward_pre_hook(partial(hook, name), with_kwargs=True) for name, module in modules.items()
    ):
        yield


@contextmanager
def after_forward(
    modules: Mapping[str, nn.Module], see: Callable[[str, tuple[Any, ...], dict[str, Any], Any], None]
) -> Iterator[None]:
    """While open, `see(name, args, kwargs, output)` is called after every forward of these modules."""

    def hook(name: str, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        see(name, args, kwargs, output)

    with _removed(
        module.register_forward_hook(partial(hook, name), with_kwargs=True) for name, module in modules.items()
    ):
        yield


def first_argument(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Tensor:
    """The tensor that a layer with one input is called with, by position or by name."""
    return args[0] if args else next(iter(kwargs.values()))


@contextmanager
def _removed(handles: Iterable[RemovableHandle]) -> Iterator[None]:
    held = list(handles)
    try:
        yield
    finally:
        for handle in held:
            handle.remove()


def storage_of(tensor: Tensor) -> int | None:
    """What identifies the memory of a strided tensor and its views; None of a sparse or nested one, which has several."""
    if tensor.layout != torch.strided or tensor.is_nested:
        return None
    return tensor.untyped_storage()._cdata


class ReadTensors(TorchDispatchMode):
    """While entered, notes which tensors, or views of them, any operation is given: also those that no module is called for.

    Args:
        tensors: name -> tensor, on any device.
    Attributes:
        names: of those that were read.
    """

    supports_higher_order_operators = True

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.names: set[str] = set()
        self._of_storage: dict[int | None, list[str]] = {}
        for name, tensor in tensors.items():
            self._of_storage.setdefault(storage_of(tensor), []).append(name)

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        for leaf in tree_leaves((args, kwargs or {})):
            if isinstance(leaf, Tensor) and (storage := storage_of(leaf)) is not None:
                self.names.update(self._of_storage.get(storage, ()))
        return function(*args, **(kwargs or {}))


@contextmanager
def keep_modes(net: nn.Module) -> Iterator[None]:
    """Every module is then in the mode in which it was."""
    modes = [(module, module.training) for module in net.modules()]
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training  # `train` would set those below it too


@contextmanager
def modes_back_on_error(*nets: nn.Module) -> Iterator[None]:
    """What ends with an exception leaves every module in the mode in which it was."""
    modes = [(module, module.training) for net in nets for module in net.modules()]
    try:
        yield
    except BaseException:
        for module, training in modes:
            module.training = training
        raise


@contextmanager
def in_eval_mode(net: nn.Module) -> Iterator[None]:
    """The whole network is in eval mode until then."""
    with keep_modes(net):
        net.eval()
        yield


# Where a network keeps its masks. All that a training needs to know of them: it does not depend on how they are made.

BUFFER = "_sparsefront_mask"


@torch.no_grad()
def zero_pruned(module: nn.Module) -> None:
    """Zero in place every weight below a module that its mask prunes."""
    for layer in module.modules():
        if hasattr(layer, BUFFER):
            layer.weight.masked_fill_(~getattr(layer, BUFFER), 0.0)


# The network without some of its blocks. A list that is numbered is numbered anew; of one with names of its own, blocks of the
# class that goes take the first names.


def names_left(net: nn.Module, blocks: Iterable[str], gone: Collection[str]) -> dict[str, str | None]:
    """What remains of the lists that blocks are in, as `remove_blocks` takes it.

    Args:
        net: the whole network.
        blocks: that may go; `gone` are those that do.
    """
    left: dict[str, str | None] = {}
    for parent in dict.fromkeys(_parent(block) for block in blocks):
        members = _members(net.get_submodule(parent), parent)
        moved = list(members)
        if [name.rpartition(".")[2] for name in moved] != [str(place) for place in range(len(moved))]:
            kinds = {type(block) for name, block in members.items() if name in gone}
            moved = [name for name, block in members.items() if type(block) in kinds]
        names = iter(moved)
        for name in members:
            left[name] = None if name in gone else next(names) if name in moved else name
    return left


def remove_blocks(net: nn.Module, blocks: Mapping[str, str | None]) -> None:
    """Take blocks out of a network, in place; one without them stays as it is.

    What a network of transformers says of their number follows (its configurations are copied first, since another network may
    have the same), so that `from_pretrained` opens what it saves.

    Args:
        net: also on the meta device.
        blocks: module -> its name afterwards, None of a block that goes; of all members of the lists that blocks are in.
    Raises:
        InvalidSetting: blocks of another network.
    """
    if not has_blocks(net, blocks):
        return
    for parent in dict.fromkeys(map(_parent, blocks)):
        owner = net.get_submodule(parent)
        stays = [blocks[name] is not None for name in _members(owner, parent)]
        if all(stays):
            continue
        moved = {}
        for place, (name, block) in enumerate(_members(owner, parent).items()):
            left = blocks[name]
            if left is not None:
                _renumber(block, place, len(moved))
                moved[left.rpartition(".")[2]] = block
        owner._modules.clear()
        owner._modules.update(moved)
        _recount(net, net.get_submodule(_parent(parent)), stays)


def has_blocks(net: nn.Module, blocks: Mapping[str, str | None]) -> bool:
    """Whether a network still has all blocks; False of the one that is left without some.

    Raises:
        InvalidSetting: blocks of another network.
    """
    found = {
        name
        for parent in dict.fromkeys(map(_parent, blocks))
        for name in _members(dict(net.named_modules(remove_duplicate=False)).get(parent), parent)
    }
    if found == set(blocks):
        return True
    if found != {left for left in blocks.values() if left is not None}:
        name = next((name for name in (*blocks, *found) if (name in blocks) != (name in found)), "")
        raise InvalidSetting("masks", "given", f"are of pattern depth and another network: they differ in {name}")
    return False


def _parent(name: str) -> str:
    return name.rpartition(".")[0]


def _members(owner: nn.Module | None, parent: str) -> dict[str, nn.Module]:
    members = {} if owner is None else owner._modules
    return {f"{parent}.{key}".removeprefix("."): block for key, block in members.items() if block is not None}


def _renumber(block: nn.Module, before: int, now: int) -> None:
    """Layers of transformers know their place, by which caches of keys and values are kept."""
    for module in block.modules():
        if vars(module).get("layer_idx") == before:
            module.layer_idx = now


NUMBERS = ("num_hidden_layers", "num_layers", "n_layers", "n_layer", "depth")


def _recount(net: nn.Module, owner: nn.Module, stays: list[bool]) -> None:
    """What modules and configurations say of the number of blocks.

    Args:
        owner: of the list that they were in.
        stays: of each block that was in it.
    """
    before, now = len(stays), sum(stays)
    for name in NUMBERS:
        if vars(owner).get(name) == before:
            setattr(owner, name, now)
    # by what the owner was made from, as far as it has it; other parts of a network count blocks of their own
    given = getattr(owner, "config", None) or getattr(net, "config", None)
    if given is None or not hasattr(given, "save_pretrained"):
        return
    memo: dict[int, Any] = {}
    for module in net.modules():
        if hasattr(config := vars(module).get("config"), "save_pretrained"):
            module.config = copy.deepcopy(config, memo)
    config: Any = memo.get(id(given), given)
    if getattr(config, "num_hidden_layers", None) == before:
        config.num_hidden_layers = now
    kinds = getattr(config, "layer_types", None)
    if isinstance(kinds, list) and len(kinds) == before:
        config.layer_types = [kind for kind, stay in zip(kinds, stays, strict=True) if stay]


class AlwaysClamped(TorchFunctionMode):
    """Around a forward that is recorded or exported, which cannot wait for values.

    BART, Marian and DETR clamp what they return in float16, where not all of it is finite. Inside, they are told that it is not:
    to clamp values that are finite changes none below the largest of float16 less 1,000.
    """

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        asked = getattr(args[0], "_asked", None) if args else None
        if func is Tensor.__bool__ and asked is not None:
            return asked == "isinf.any"
        found = func(*args, **(kwargs or {}))
        if (name := getattr(func, "__name__", "")) in ("isfinite", "isinf"):
            found._asked = name
        elif (asked, name) in (("isfinite", "all"), ("isinf", "any")):
            found._asked = f"{asked}.{name}"
        return found


def decomposed(function: torch._ops.OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The result of an operator that is made of others, by those others; NotImplemented of any other operator.

    Inference mode hands such operators over whole. As C++ takes them apart, on a GPU an LSTM into cuDNN's operator:
    PyTorch's own decompositions in Python fail for the steps of a decoder there.
    """
    key = torch._C.DispatchKey.CompositeImplicitAutograd
    if torch._C._dispatch_has_kernel_for_dispatch_key(function.name(), key):
        return function._op_dk(key, *args, **kwargs)
    return function.decompose(*args, **kwargs)
