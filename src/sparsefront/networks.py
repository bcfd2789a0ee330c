"""Utilities for any network: state dicts, finite checks, hooks, train and eval modes, removal of blocks, dispatch modes."""

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

PrunableLayer = nn.Linear | nn.Conv1d | nn.Conv2d
"""Layers whose weights may be pruned; no kernel runs a Conv1d."""


def layer_weight(layer: nn.Module) -> Tensor:
    """The weight of a layer: Linear [N, K], Conv1d [C_out, C_in, k], Conv2d [C_out, C_in, kh, kw]."""
    weight = layer.weight
    assert isinstance(weight, Tensor)
    return weight


def unwrap(net: Any) -> Any:
    """Unwrap `torch.compile`, DataParallel and DistributedDataParallel, in any nesting; anything else is returned unchanged."""
    while isinstance(net, nn.Module):
        if isinstance(net, nn.DataParallel | nn.parallel.DistributedDataParallel):
            net = net.module
        elif "_orig_mod" in net._modules:
            net = net._modules["_orig_mod"]
        else:
            break
    return net


def load_state(net: nn.Module, weights: Mapping[str, Tensor], *, strict: bool = True) -> tuple[list[str], list[str]]:
    """`load_state_dict` of weights from a file without module versions, assuming the network's own.

    Without versions some modules, such as torchvision's MNASNet, reject their weights.

    Args:
        strict: as in `load_state_dict`.
    Returns:
        missing and unexpected keys.
    Raises:
        RuntimeError: the weights do not fit.
    """
    content = OrderedDict(weights)
    content._metadata = net.state_dict()._metadata  # type: ignore[attr-defined]
    missing, unexpected = net.load_state_dict(content, strict=strict)
    return missing, unexpected


def same_shapes(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    """Whether two state dicts have the same names and shapes."""
    return one.keys() == other.keys() and all(one[name].shape == other[name].shape for name in one)


class NonFinite(NamedTuple):
    """A tensor with NaN or infinity: its name, and their counts as text."""

    name: str
    counts: str


def first_non_finite(tensors: Mapping[str, Tensor]) -> NonFinite | None:
    """The first tensor with NaN or infinity, in the order of the mapping; None where all are finite.

    Args:
        tensors: any shape, device and dtype; integers and bools are always finite.
    """
    for name, values in tensors.items():
        if values.numel() == 0 or not values.is_floating_point():
            continue
        if values.element_size() == 1:  # torch cannot compare 8-bit floats
            values = values.float()
        # aminmax propagates NaN and infinity, without a temporary of the tensor's size
        if not torch.isfinite(torch.stack(torch.aminmax(values.detach()))).all():
            nans, infinities = int(values.isnan().sum()), int(values.isinf().sum())
            return NonFinite(name, f"{nans} NaN and {infinities} infinite of {values.numel()}")
    return None


def require_finite(scores: Mapping[str, Tensor]) -> None:
    """Raise ValueError naming the first layer whose scores have NaN or infinity.

    A NaN compares false with every threshold, so that weights would silently be pruned or kept at random.
    """
    bad_tensor = first_non_finite(scores)
    if bad_tensor is not None:
        raise ValueError(f"the importance of {bad_tensor.name} is not finite: {bad_tensor.counts} scores")


def tensors_digest(tensors: Mapping[str, Tensor]) -> str:
    """sha256 in hexadecimal over name, dtype, shape and bytes of every tensor, by name."""
    hashed = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        hashed.update(f"{name}\0{tensor.dtype}\0{list(tensor.shape)}\0".encode())
        hashed.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy())
    return hashed.hexdigest()


def architecture_text(net: nn.Module) -> str:
    """Text that is equal for networks of the same modules and of tensors with the same names, shapes, dtypes and devices."""
    tensors = (*net.named_parameters(), *net.named_buffers())
    return "\n".join(
        (repr(net), *(f"{name} {tensor.dtype} {list(tensor.shape)} {tensor.device}" for name, tensor in tensors))
    )


def has_forward_hooks(module: nn.Module) -> bool:
    """Whether the module itself has forward hooks or pre-hooks, which a replacement would drop."""
    return bool(module._forward_hooks or module._forward_pre_hooks)


@contextmanager
def before_forward(
    modules: Mapping[str, nn.Module], see: Callable[[str, tuple[Any, ...], dict[str, Any]], None]
) -> Iterator[None]:
    """Call `see(name, args, kwargs)` before every forward of these modules inside the context."""

    def hook(name: str, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        see(name, args, kwargs)

    with _remove_after(
        module.register_forward_pre_hook(partial(hook, name), with_kwargs=True) for name, module in modules.items()
    ):
        yield


@contextmanager
def after_forward(
    modules: Mapping[str, nn.Module], see: Callable[[str, tuple[Any, ...], dict[str, Any], Any], None]
) -> Iterator[None]:
    """Call `see(name, args, kwargs, output)` after every forward of these modules inside the context."""

    def hook(name: str, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        see(name, args, kwargs, output)

    with _remove_after(
        module.register_forward_hook(partial(hook, name), with_kwargs=True) for name, module in modules.items()
    ):
        yield


def first_argument(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Tensor:
    """The input of a layer with one argument, given by position or keyword."""
    return args[0] if args else next(iter(kwargs.values()))


@contextmanager
def _remove_after(handles: Iterable[RemovableHandle]) -> Iterator[None]:
    held = list(handles)
    try:
        yield
    finally:
        for handle in held:
            handle.remove()


def storage_of(tensor: Tensor) -> int | None:
    """An identifier of a strided tensor's storage, shared by its views; None for sparse or nested tensors, which have several."""
    if tensor.layout != torch.strided or tensor.is_nested:
        return None
    return tensor.untyped_storage()._cdata


class ReadTensors(TorchDispatchMode):
    """Records which tensors, or views of them, any operator reads, including reads outside of module calls.

    Args:
        tensors: name -> tensor, on any device.
    Attributes:
        names: of the tensors that were read.
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
    """Restore the train or eval mode of every module afterwards."""
    modes = [(module, module.training) for module in net.modules()]
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training  # `train` would also set submodules


def snapshot_modules(*nets: nn.Module) -> Callable[[], None]:
    """A function that gives all modules the class, mode and other attributes that they have now; values of tensors stay.

    It keeps the tensors alive, and can be called again.
    """
    states = [(module, type(module), _copy_state(vars(module))) for net in nets for module in net.modules()]
    strided = {tensor: tensor.is_contiguous() for net in nets for tensor in net.parameters()}

    def restore() -> None:
        for module, kind, state in states:
            if type(module) is not kind:
                module.__class__ = kind
            vars(module).clear()
            vars(module).update(_copy_state(state))
        for tensor, is_contiguous in strided.items():  # `Module.to(memory_format=)` changes tensors in place
            if is_contiguous and not tensor.is_contiguous():
                tensor.data = tensor.data.contiguous()

    return restore


def _copy_state(state: dict[str, Any]) -> dict[str, Any]:
    """Attributes of a module with shallow copies of its dicts and sets, such as those of parameters, modules and hooks."""
    return {name: copy.copy(value) if isinstance(value, dict | set) else value for name, value in state.items()}


@contextmanager
def restore_on_error(*nets: nn.Module) -> Iterator[None]:
    """Restore all modules after an exception, see `snapshot_modules`."""
    restore = snapshot_modules(*nets)
    try:
        yield
    except BaseException:
        restore()
        raise


@contextmanager
def in_eval_mode(net: nn.Module) -> Iterator[None]:
    """Put the whole network in eval mode, and restore its modes afterwards."""
    with keep_modes(net):
        net.eval()
        yield


BUFFER = "_sparsefront_mask"


@torch.no_grad()
def zero_pruned(module: nn.Module) -> None:
    """Zero all pruned weights of a module and its submodules, in place."""
    for layer in module.modules():
        if hasattr(layer, BUFFER):
            layer.weight.masked_fill_(~getattr(layer, BUFFER), 0.0)


# Removal of blocks. Numbered containers are renumbered; in containers with other names, remaining blocks of the removed class
# take the first of that class's names.


def names_left(net: nn.Module, blocks: Iterable[str], gone: Collection[str]) -> dict[str, str | None]:
    """The argument of `remove_blocks` for blocks to remove: name -> its name afterwards, None if removed.

    Args:
        net: the whole network.
        blocks: that may be removed.
        gone: those to remove.
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
    """Remove blocks from a network, in place; no effect if they were removed already.

    Updates the number of layers in configurations of transformers (which are copied first, since networks may share them), so
    that `from_pretrained` opens what the network saves.

    Args:
        net: on any device, meta included.
        blocks: module -> its name afterwards, None if removed; for all members of the containers of blocks.
    Raises:
        InvalidSetting: blocks of another network.
    """
    if not has_blocks(net, blocks):
        return
    for parent in dict.fromkeys(map(_parent, blocks)):
        owner = net.get_submodule(parent)
        members = _members(owner, parent)
        stays = [blocks[name] is not None for name in members]
        if all(stays):
            continue
        moved = {}
        for place, (name, block) in enumerate(members.items()):
            left = blocks[name]
            if left is not None:
                _update_layer_idx(block, place, len(moved))
                moved[left.rpartition(".")[2]] = block
        owner._modules.clear()
        owner._modules.update(moved)
        forget = getattr(owner, "forget_experts", None)
        if forget is not None:  # experts, which a router counts
            experts = [
                stay for (name, block), stay in zip(members.items(), stays, strict=True) if any(block.children())
            ]
            forget(net.get_submodule(_parent(parent)), experts)
            _update_counts(net, ("num_local_experts", "num_experts"), len(experts), sum(experts))
        else:
            _update_block_counts(net, net.get_submodule(_parent(parent)), stays)


def has_blocks(net: nn.Module, blocks: Mapping[str, str | None]) -> bool:
    """Whether a network still has all blocks; False if some were removed.

    Raises:
        InvalidSetting: blocks of another network.
    """
    present = {
        name
        for parent in dict.fromkeys(map(_parent, blocks))
        for name in _members(dict(net.named_modules(remove_duplicate=False)).get(parent), parent)
    }
    if present == set(blocks):
        return True
    if present != {left for left in blocks.values() if left is not None}:
        name = next((name for name in (*blocks, *present) if (name in blocks) != (name in present)), "")
        raise InvalidSetting("masks", "given", f"are of pattern depth and another network: they differ in {name}")
    return False


def _parent(name: str) -> str:
    return name.rpartition(".")[0]


def _members(owner: nn.Module | None, parent: str) -> dict[str, nn.Module]:
    members = {} if owner is None else owner._modules
    return {f"{parent}.{key}".removeprefix("."): block for key, block in members.items() if block is not None}


def _update_layer_idx(block: nn.Module, before: int, now: int) -> None:
    """Update `layer_idx` of transformers' layers, the index of their KV cache."""
    for module in block.modules():
        if vars(module).get("layer_idx") == before:
            module.layer_idx = now


NUMBERS = ("num_hidden_layers", "num_layers", "n_layers", "n_layer", "depth")


def _update_counts(net: nn.Module, names: Collection[str], before: int, now: int) -> None:
    """Update numbers in the network's configuration of transformers, which is copied: networks may share it."""
    config = getattr(net, "config", None)
    if not hasattr(config, "save_pretrained"):
        return
    for name in names:
        if getattr(config, name, None) == before:
            memo: dict[int, Any] = {}
            for module in net.modules():
                own = vars(module).get("config")
                if hasattr(own, "save_pretrained"):
                    module.config = copy.deepcopy(own, memo)
            setattr(net.config, name, now)
            top = getattr(net.config, "num_experts_per_tok", None)
            if isinstance(top, int):
                net.config.num_experts_per_tok = min(top, now)


def _update_block_counts(net: nn.Module, owner: nn.Module, stays: list[bool]) -> None:
    """Update the number of blocks in modules and configurations.

    Args:
        owner: module with the blocks' container.
        stays: whether each block remains.
    """
    before, now = len(stays), sum(stays)
    for name in NUMBERS:
        if vars(owner).get(name) == before:
            setattr(owner, name, now)
    # the owner's own configuration, if it has one: other parts of a network may have other numbers of blocks
    owner_config = getattr(owner, "config", None) or getattr(net, "config", None)
    if owner_config is None or not hasattr(owner_config, "save_pretrained"):
        return
    memo: dict[int, Any] = {}
    for module in net.modules():
        config = vars(module).get("config")
        if hasattr(config, "save_pretrained"):
            module.config = copy.deepcopy(config, memo)
    config: Any = memo.get(id(owner_config), owner_config)
    if getattr(config, "num_hidden_layers", None) == before:
        config.num_hidden_layers = now
    of_both: Any = getattr(net, "config", None)
    if getattr(of_both, "is_encoder_decoder", False):  # names one number of blocks for each
        kind = "encoder" if owner is net.get_encoder() else "decoder"  # type: ignore[operator]  # of transformers
        for name in (f"{kind}_layers", f"num_{kind}_layers", *(["num_layers"] if kind == "encoder" else [])):
            if name in vars(of_both) and getattr(of_both, name) == before:
                setattr(of_both, name, now)
    kinds = getattr(config, "layer_types", None)
    if isinstance(kinds, list) and len(kinds) == before:
        config.layer_types = [kind for kind, stay in zip(kinds, stays, strict=True) if stay]


class AlwaysClamped(TorchFunctionMode):
    """For a forward that is recorded or exported, which cannot inspect values: makes tests for non-finite values true.

    BART, Marian and DETR clamp float16 outputs if any is not finite. Inside they always clamp, which only changes values within
    1,000 of float16's maximum.
    """

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        asked = getattr(args[0], "_finite_test", None) if args else None
        if func is Tensor.__bool__ and asked in ("isfinite.all", "isinf.any"):
            return asked == "isinf.any"
        result = func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", "")
        if name in ("isfinite", "isinf"):
            result._finite_test = name
        elif (asked, name) in (("isfinite", "all"), ("isinf", "any")):
            result._finite_test = f"{asked}.{name}"
        return result


def decompose(function: torch._ops.OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run a composite operator through its parts; NotImplemented for other operators.

    Inference mode does not decompose such operators. Uses the C++ kernels, which on a GPU call cuDNN for an LSTM: PyTorch's
    Python decompositions fail for the steps of a decoder there.
    """
    key = torch._C.DispatchKey.CompositeImplicitAutograd
    if torch._C._dispatch_has_kernel_for_dispatch_key(function.name(), key):
        return function._op_dk(key, *args, **kwargs)
    return function.decompose(*args, **kwargs)
