"""What every model settings class provides to the pipeline, and the layers of a network that may be pruned."""

import copy
from abc import ABC, abstractmethod
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from torch import nn

from sparsefront.errors import InvalidSetting

if TYPE_CHECKING:
    from sparsefront.data.base import DataInfo


# The blocks that a network repeats.


def block_names(net: nn.Module, layers: list[str]) -> list[str]:
    """The network's blocks: the outermost members of a ModuleList or Sequential that have one of `layers` inside.

    Args:
        layers: names of the prunable Linear and Conv layers; a list of bare layers is no list of blocks.
    Returns:
        names in the network's order: the blocks of a transformer, the bottlenecks of a ResNet.
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
    """Settings of a network; the arguments of a subclass are the keys of its YAML, best as a frozen dataclass.

    A subclass needs `kinds` and the abstract methods; whatever else is here has a default that works.

    Networks are called with keyword arguments: `net(x=...)` for images [B, C, H, W] -> logits [B, classes], the
    tokenizer's names for text.
    """

    kinds: ClassVar[tuple[str, ...]]
    """Tasks that this model can serve."""
    fingerprinted: ClassVar[frozenset[str]] = frozenset()
    """Settings that `fingerprint` speaks for; all others are part of the key of stage dense by themselves."""
    for_pruning: ClassVar[frozenset[str]] = frozenset({"prune_head"})
    """Settings that only say what may be pruned: dense weights are the same whatever they are. A class needs none of them."""

    @property
    def variant(self) -> str | None:
        """Short name that tells networks of this model apart in reports; None where there is one only."""
        return None

    @property
    def checkpoint(self) -> str | None:
        """What the initial weights are read from, by its path or name; None where they are random."""
        return getattr(self, "path", None) or getattr(self, "weights", None)

    @property
    def trained_on(self) -> str | None:
        """The data set, by its name here, whose train split that checkpoint is known to have seen; None where it is not known."""
        return None

    def settings_used(self) -> dict[str, Any]:
        """The settings as a result names them: null where one had no say in what was loaded."""
        return asdict(self) if is_dataclass(self) else dict(vars(self))

    def network_facts(self, net: nn.Module) -> dict[str, Any]:
        """What a loaded network says of itself that the settings do not, JSON-able, under other names than theirs."""
        return {}

    @abstractmethod
    def check(self) -> None:
        """Check what can be checked without data, download or weights.

        Raises:
            InvalidSetting: a path that does not exist, an unknown name, settings that exclude each other.
        """

    def at_commit(self) -> Self:
        """These settings with a branch or tag of a hub replaced by the commit that it stands for; others as they are.

        Raises:
            InvalidSetting: no such revision, or no host that has it can be reached.
        """
        return self

    @abstractmethod
    def fingerprint(self) -> dict[str, Any]:
        """What the initial weights depend on, JSON-able: at least what the settings named in `fingerprinted` do to them.

        Local files count by content (sha256), not by where they lie; what only concerns pruning is left out.
        """

    @abstractmethod
    def build(self, info: "DataInfo") -> nn.Module:
        """The network in fp32 on the CPU, in training mode, weights loaded; random ones follow torch's global seed.

        A head for another number of classes is replaced by a new one, with a logged line.

        Raises:
            InvalidSetting: a checkpoint that does not fit, weights that cannot be fetched, data that the network cannot
                take.
        """

    @abstractmethod
    def skeleton(self, info: "DataInfo") -> nn.Module:
        """The same architecture on the meta device; reads no weights and leaves the random state alone.

        Raises:
            InvalidSetting: data that the network cannot take, a configuration that cannot be read.
        """

    def architecture(self, info: "DataInfo", exported: Path) -> nn.Module:
        """As `build`, for weights that are loaded into it afterwards: whatever it holds is overwritten.

        By default it is built. A model that reads a checkpoint does without, as it may be gone when an export is loaded.

        Args:
            exported: folder of an export of such a network, with what `save_pretrained_files` wrote.
        Raises:
            InvalidSetting: as `build`.
        """
        return self.build(info)

    @abstractmethod
    def prunable(self, net: nn.Module) -> list[str]:
        """Names of the Linear and Conv2d layers that may be pruned, in the order of the network."""

    def longest_sequence(self, info: "DataInfo") -> int | None:
        """The most tokens that the network takes; None where nothing bounds them, as for images.

        Raises:
            InvalidSetting: as `skeleton`.
        """
        return None

    def save_pretrained_files(self, net: nn.Module, directory: Path) -> None:
        """Write what the model's own library needs beside model.safetensors: by default the configuration of a network of
        transformers, and nothing for others.
        """
        if is_of_transformers(net):
            save_config(net, directory)


# Networks of transformers: what `from_pretrained` opens.


def is_of_transformers(net: nn.Module) -> bool:
    """Whether it has a configuration that transformers reads back."""
    return hasattr(getattr(net, "config", None), "save_pretrained")


def save_config(net: nn.Module, directory: Path) -> None:
    """Write the network's config.json and, where it generates text, generation_config.json."""
    config = copy.deepcopy(net.config)
    config.architectures = [type(net).__name__]
    config.dtype = next((weight.dtype for weight in net.parameters() if weight.is_floating_point()), None)
    config.save_pretrained(directory)
    if hasattr(generation := getattr(net, "generation_config", None), "save_pretrained"):
        generation.save_pretrained(directory)


def linear_and_conv_layers(net: nn.Module, *, inside: tuple[str, ...]) -> list[str]:
    """Names of all Linear and Conv2d modules at or below the modules named in `inside`, in the order of the network.

    The name of the network itself is "".
    A layer that two parents share is named once.
    """
    return [
        name
        for name, module in net.named_modules()
        if isinstance(module, (nn.Linear, nn.Conv2d))
        and any(not root or f"{name}.".startswith(f"{root}.") for root in inside)
    ]


# The layers that a model says may be pruned, checked: its class may be a user's own.

NAMED_AT_MOST = 8


def prunable_layers(model: Model, net: nn.Module) -> list[str]:
    """What `model.prunable(net)` names.

    Raises:
        InvalidSetting: key `_target_`: no list, a name of no Linear and no Conv2d, or one that is there twice.
    """
    named = model.prunable(net)
    kind = f"{type(model).__module__}.{type(model).__qualname__}"
    if not isinstance(named, list | tuple):
        allowed = f"prunable returns {named!r}, where it returns a list of names of Linear and Conv2d layers"
        raise InvalidSetting("_target_", kind, allowed)
    modules = dict(net.named_modules(remove_duplicate=False))
    layers = [name for name, module in modules.items() if isinstance(module, nn.Linear | nn.Conv2d)]
    for place, name in enumerate(named):
        if name not in layers:
            there = ", ".join(layers[:NAMED_AT_MOST]) + (", ..." if len(layers) > NAMED_AT_MOST else "")
            allowed = f"prunable names {name!r}, which is no Linear and no Conv2d layer; there are {there or 'none'}"
            raise InvalidSetting("_target_", kind, allowed)
        if name in named[:place]:
            raise InvalidSetting("_target_", kind, f"prunable names {name!r} twice")
    return list(named)
