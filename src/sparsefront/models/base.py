"""The model interface, and the layers of a network that may be pruned."""

import copy
from abc import ABC, abstractmethod
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from torch import nn

from sparsefront.errors import InvalidSetting
from sparsefront.networks import PrunableLayer

if TYPE_CHECKING:
    from sparsefront.data.base import DataInfo


def block_names(net: nn.Module, layers: list[str]) -> list[str]:
    """The network's blocks: the outermost members of a ModuleList or Sequential that contain one of `layers`.

    Args:
        layers: names of the prunable Linear and Conv layers; lists of bare layers do not count.
    Returns:
        names in network order: the blocks of a transformer, the bottlenecks of a ResNet.
    """
    lists = {name for name, module in net.named_modules() if isinstance(module, nn.ModuleList | nn.Sequential)}
    blocks: list[str] = []
    for name, _ in net.named_modules():
        listed = name and name.rpartition(".")[0] in lists
        nested = any(name.startswith(f"{block}.") for block in blocks)
        if listed and not nested and any(layer.startswith(f"{name}.") for layer in layers):
            blocks.append(name)
    return blocks


class Model(ABC):
    """Settings of a network; a subclass's arguments are the keys of its YAML, preferably as a frozen dataclass.

    A subclass needs `kinds` and the abstract methods; everything else has a default.

    Networks are called with keyword arguments: `net(x=...)` for images [B, C, H, W] -> logits [B, classes], the
    tokenizer's names for text.
    """

    kinds: ClassVar[tuple[str, ...]]
    """Tasks that this model supports."""
    fingerprinted: ClassVar[frozenset[str]] = frozenset()
    """Settings that `fingerprint` covers; all others are part of the key of stage dense themselves."""
    for_pruning: ClassVar[frozenset[str]] = frozenset({"prune_head"})
    """Settings that only select prunable layers and do not affect dense weights; optional for a class."""

    @property
    def variant(self) -> str | None:
        """Short name that distinguishes networks of this model in reports; None if there is only one."""
        return None

    @property
    def checkpoint(self) -> str | None:
        """Path or name of the initial weights; None if they are random."""
        return getattr(self, "path", None) or getattr(self, "weights", None)

    @property
    def trained_on(self) -> str | None:
        """Name of the data set whose train split that checkpoint has seen; None if unknown."""
        return None

    def settings_used(self) -> dict[str, Any]:
        """The settings as shown in a result: null if a setting did not affect what was loaded."""
        return asdict(self) if is_dataclass(self) else dict(vars(self))

    def network_facts(self, net: nn.Module) -> dict[str, Any]:
        """Facts about a loaded network beyond its settings, JSON-able, under different names."""
        return {}

    @abstractmethod
    def check(self) -> None:
        """Check what is possible without data, download or weights.

        Raises:
            InvalidSetting: a path does not exist, a name is unknown, or settings exclude each other.
        """

    def at_commit(self) -> Self:
        """These settings with a hub branch or tag resolved to its commit; unchanged otherwise.

        Raises:
            InvalidSetting: no such revision, or no host that has it can be reached.
        """
        return self

    @abstractmethod
    def fingerprint(self) -> dict[str, Any]:
        """What the initial weights depend on, JSON-able: at least the settings in `fingerprinted`.

        Local files count by content (sha256), not by path; settings that only concern pruning are left out.
        """

    @abstractmethod
    def build(self, info: "DataInfo") -> nn.Module:
        """Build the network in fp32 on the CPU, in training mode, with weights loaded; random weights use torch's global seed.

        A head with another number of classes is replaced by a new one and logged.

        Raises:
            InvalidSetting: a checkpoint does not fit, weights cannot be downloaded, or the network does not support the data.
        """

    @abstractmethod
    def skeleton(self, info: "DataInfo") -> nn.Module:
        """Build the architecture on the meta device; reads no weights and does not advance random states.

        Raises:
            InvalidSetting: the network does not support the data, or its configuration cannot be read.
        """

    def architecture(self, info: "DataInfo", exported: Path) -> nn.Module:
        """Like `build`, for weights that are loaded afterwards and overwrite everything.

        Calls `build` by default. Models that read a checkpoint override it, because the checkpoint may be gone when an export
        is loaded.

        Args:
            exported: folder of an export of such a network, with the files of `save_pretrained_files`.
        Raises:
            InvalidSetting: as in `build`.
        """
        return self.build(info)

    @abstractmethod
    def prunable(self, net: nn.Module) -> list[str]:
        """Names of the Linear and Conv2d layers that may be pruned, in network order."""

    def longest_sequence(self, info: "DataInfo") -> int | None:
        """Maximum number of tokens of the network's input; None if unlimited or for images.

        Raises:
            InvalidSetting: as in `skeleton`.
        """
        return None

    def save_pretrained_files(self, net: nn.Module, directory: Path) -> None:
        """Write the files that the model's own library needs besides model.safetensors: by default, the config of a
        transformers network, and nothing for others.
        """
        if is_of_transformers(net):
            save_config(net, directory)


def is_of_transformers(net: nn.Module) -> bool:
    """Whether the network has a transformers config."""
    return hasattr(getattr(net, "config", None), "save_pretrained")


CONFIG = "config.json"


def save_config(net: nn.Module, directory: Path, name: str = CONFIG) -> None:
    """Write the network's config and, if it generates text, generation_config.json.

    Args:
        name: of the config's file; another one than config.json hides it from transformers.
    """
    config = copy.deepcopy(net.config)
    config.architectures = [type(net).__name__]
    config.dtype = next((weight.dtype for weight in net.parameters() if weight.is_floating_point()), None)
    directory.mkdir(parents=True, exist_ok=True)
    config.to_json_file(directory / name)
    generation = getattr(net, "generation_config", None)
    if hasattr(generation, "save_pretrained"):
        generation.save_pretrained(directory)


def linear_and_conv_layers(net: nn.Module, *, inside: tuple[str, ...]) -> list[str]:
    """Names of all Linear and Conv2d modules at or below the modules in `inside`, in network order.

    "" names the network itself. A layer with two parents is listed once.
    """
    return [
        name
        for name, module in net.named_modules()
        if isinstance(module, PrunableLayer) and any(not root or f"{name}.".startswith(f"{root}.") for root in inside)
    ]


# Validation of a model's prunable layers: its class may be user code.

NAMED_AT_MOST = 8


def prunable_layers(model: Model, net: nn.Module) -> list[str]:
    """Call and validate `model.prunable(net)`.

    Raises:
        InvalidSetting: key `_target_`: not a list, duplicates, or a name that is not of a Linear or Conv2d.
    """
    names = model.prunable(net)
    kind = f"{type(model).__module__}.{type(model).__qualname__}"
    if not isinstance(names, list | tuple):
        allowed = f"prunable returns {names!r}, where it returns a list of names of Linear and Conv2d layers"
        raise InvalidSetting("_target_", kind, allowed)
    modules = dict(net.named_modules(remove_duplicate=False))
    layers = [name for name, module in modules.items() if isinstance(module, PrunableLayer)]
    for place, name in enumerate(names):
        if name not in layers:
            there = ", ".join(layers[:NAMED_AT_MOST]) + (", ..." if len(layers) > NAMED_AT_MOST else "")
            allowed = f"prunable names {name!r}, which is no Linear and no Conv2d layer; there are {there or 'none'}"
            raise InvalidSetting("_target_", kind, allowed)
        if name in names[:place]:
            raise InvalidSetting("_target_", kind, f"prunable names {name!r} twice")
    return list(names)
