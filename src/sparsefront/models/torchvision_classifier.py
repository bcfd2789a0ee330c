"""Any classifier of torchvision, by name."""

from abc import abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.error import URLError

import torch
from torch import Tensor, nn

from sparsefront import progress
from sparsefront.errors import InvalidSetting, first_line
from sparsefront.models.attention import split_packed_projections
from sparsefront.models.base import Model, linear_and_conv_layers
from sparsefront.models.checkpoint import (
    load_weights,
    read_weights,
    warn_of_unnamed_classes,
    weights_file,
    weights_fingerprint,
)
from sparsefront.models.linears import as_linears
from sparsefront.networks import in_eval_mode
from sparsefront.settings_class import settings_class

if TYPE_CHECKING:
    from sparsefront.data.base import DataInfo


# Source of a torchvision model's weights: torchvision's own by name, a local checkpoint, or random.


@dataclass(frozen=True)
class TorchvisionSource:
    """At most one of `weights` and `path`; neither means random initialization.

    Args:
        variant: torchvision's builder, e.g. resnet50.
        weights: name of the builder's weights, e.g. IMAGENET1K_V1 or DEFAULT.
        path: local checkpoint.
    """

    variant: str
    weights: str | None
    path: str | None

    @property
    def trained_on(self) -> str | None:
        """The data set of torchvision's own weights; None for others."""
        return None if self.weights is None else "imagenet"

    def check(self) -> None:
        """Raise InvalidSetting if both are set, a name is unknown, or a path does not exist."""
        if self.weights is not None and self.path is not None:
            raise InvalidSetting("weights", self.weights, "path and weights exclude each other; set one to null")
        if self.weights is not None:
            self._find()
        if self.path is not None:
            weights_file(self.path)

    def fingerprint(self) -> str | dict[str, Any]:
        """JSON-able; named weights are identified by their file name, which contains torchvision's digest."""
        if self.path is not None:
            return weights_fingerprint(self.path)
        return "random" if self.weights is None else self._find().url.rpartition("/")[2]

    def state_dict(self) -> dict[str, Tensor] | None:
        """The weights on the CPU, downloaded once to torch.hub's cache; None = random.

        Raises:
            InvalidSetting: the download fails, or the checkpoint cannot be read.
        """
        if self.path is not None:
            return read_weights(self.path)
        if self.weights is None:
            return None
        try:
            return dict(self._find().get_state_dict(progress=progress.shows(), check_hash=True, weights_only=True))
        except (URLError, TimeoutError, ConnectionError, RuntimeError) as error:  # RuntimeError: digest mismatch
            raise InvalidSetting(
                "weights", self.weights, f"could not be downloaded ({error}); set model.path to a local checkpoint"
            ) from error

    def validate_channels(self, channels: int | None) -> None:
        """Raise InvalidSetting unless there are three channels: torchvision's weights are for RGB."""
        if self.weights is not None and channels != 3:
            raise InvalidSetting(
                "weights", self.weights, f"are for 3 channels and the dataset has {channels}; set weights=null or path"
            )

    @property
    def misfit_name(self) -> str:
        """How messages about unsuitable weights name them."""
        return self.path or f"torchvision's {self.weights}"

    def _find(self) -> Any:
        """The member of torchvision's weights enum."""
        from torchvision.models import get_model_weights

        known = get_model_weights(self.variant).__members__
        if self.weights not in known:
            allowed = f"{self.variant} has {', '.join(known)}, or null for random ones"
            raise InvalidSetting("weights", self.weights, allowed)
        return known[self.weights]


class TorchvisionModel(Model):
    """Base of networks built by torchvision with weights from a `TorchvisionSource`."""

    kinds: ClassVar[tuple[str, ...]] = ("image_classification",)

    @property
    @abstractmethod
    def source(self) -> TorchvisionSource: ...

    @property
    @abstractmethod
    def head(self) -> str:
        """Name of the classifier."""

    @abstractmethod
    def network(self, info: "DataInfo") -> nn.Module:
        """Build the network with random weights."""

    def fit(self, weights: dict[str, Tensor], net: nn.Module) -> dict[str, Tensor]:
        """Adapt the source's weights to the names and shapes of the network."""
        return weights

    @property
    def trained_on(self) -> str | None:
        return self.source.trained_on

    def check(self) -> None:
        self.source.check()

    def build(self, info: "DataInfo") -> nn.Module:
        self.source.validate_channels(info.channels)
        net = self.network(info)
        weights = self.source.state_dict()
        if weights is not None:
            load_weights(net, self.fit(weights, net), head=self.head, path=self.source.misfit_name)
            if self.source.weights is not None:
                warn_of_unnamed_classes(info.class_names, self.source.misfit_name)
        return net

    def skeleton(self, info: "DataInfo") -> nn.Module:
        with torch.device("meta"):
            return self.network(info)

    def architecture(self, info: "DataInfo", exported: Path) -> nn.Module:
        return self.network(info)


WITH_AUXILIARY_HEADS = ("googlenet", "inception_v3")


@settings_class()
class TorchvisionClassifier(Model):
    """Settings of model torchvision.

    Args:
        name: in torchvision, such as resnet18, mobilenet_v3_small, convnext_tiny or swin_t.
        weights: name of this network's weights in torchvision, e.g. DEFAULT; null = path or random.
        path: local checkpoint.
        prune_head: also prune the classifier, the last Linear.
    """

    kinds: ClassVar[tuple[str, ...]] = ("image_classification",)
    fingerprinted: ClassVar[frozenset[str]] = frozenset({"name", "weights", "path"})

    name: str = "resnet18"
    weights: str | None = None
    path: str | None = None
    prune_head: bool = False

    @property
    def variant(self) -> str:
        return self.name

    @property
    def source(self) -> TorchvisionSource:
        return TorchvisionSource(self.name, self.weights, self.path)

    @property
    def trained_on(self) -> str | None:
        return self.source.trained_on

    def check(self) -> None:
        import torchvision

        known = torchvision.models.list_models(module=torchvision.models)
        if self.name not in known:
            raise InvalidSetting("name", self.name, f"is no classifier of torchvision; there are {', '.join(known)}")
        self.source.check()

    def fingerprint(self) -> dict[str, Any]:
        return {"model": "torchvision", "name": self.name, "weights": self.source.fingerprint()}

    def build(self, info: "DataInfo") -> nn.Module:
        net = self._net(info)
        weights = self.source.state_dict()
        if weights is not None:
            load_weights(net, _fitting(weights, net), head=_head(net), path=self.source.misfit_name)
            if self.source.weights is not None:
                warn_of_unnamed_classes(info.class_names, self.source.misfit_name)
        return net

    def skeleton(self, info: "DataInfo") -> nn.Module:
        try:
            with torch.device("meta"):
                net = self._net(info)
        except NotImplementedError:  # RegNet computes its widths with tensors, which fails on meta
            with torch.random.fork_rng(devices=[]):
                net = self._net(info).to("meta")
        self._require_size(net, info)
        return net

    def architecture(self, info: "DataInfo", exported: Path) -> nn.Module:
        return self._net(info)

    def prunable(self, net: nn.Module) -> list[str]:
        """Every Linear and Conv2d, except the first convolution, which reads the image, and, without prune_head, the head.

        Projections in Swin V2's shifted-window attention stay dense: torchvision reads their weights without calling them, so
        no kernel could run there.
        """
        layers = linear_and_conv_layers(net, inside=("",))
        dense = {next(name for name in layers if isinstance(net.get_submodule(name), nn.Conv2d)), *_find_uncalled(net)}
        dense |= set() if self.prune_head else {_head(net)}
        return [name for name in layers if name not in dense]

    def _net(self, info: "DataInfo") -> nn.Module:
        from torchvision.models import get_model

        self.source.validate_channels(info.channels)
        arguments: dict[str, Any] = {"image_size": info.image_size} if self.name.startswith("vit_") else {}
        if self.name in WITH_AUXILIARY_HEADS:
            # torchvision's weights expect pixels in -1 ... 1, to which the network itself transforms normalized ones
            arguments = {"aux_logits": False, "init_weights": False, "transform_input": self.weights is not None}
        try:
            net = get_model(self.name, weights=None, num_classes=info.num_classes, **arguments)
        except (ValueError, AssertionError) as error:  # torch._assert for a size not divisible into patches
            raise InvalidSetting("name", self.name, f"cannot be built for this data: {error}") from error
        as_linears(net)
        _read_channels(net, info.channels)
        return net

    def _require_size(self, net: nn.Module, info: "DataInfo") -> None:
        """Run the network on the meta device, because only its layers determine which sizes it supports.

        Raises:
            InvalidSetting: it does not support these images.
        """
        images = torch.empty(2, info.channels, info.image_size, info.image_size, device="meta")
        try:
            with in_eval_mode(net), torch.no_grad():
                net(x=images)
        except (RuntimeError, ValueError, AssertionError) as error:
            why = f"cannot take images of {info.image_size} pixels ({first_line(error)})"
            raise InvalidSetting("name", self.name, why) from error


def _head(net: nn.Module) -> str:
    """The last Linear; without any, the last convolution."""
    layers = linear_and_conv_layers(net, inside=("",))
    linears = [name for name in layers if isinstance(net.get_submodule(name), nn.Linear)]
    return (linears or layers)[-1]


def _find_uncalled(net: nn.Module) -> set[str]:
    """The packed query-key-value Linear and output projection of attentions that torchvision runs without calling them."""
    from torchvision.models.swin_transformer import ShiftedWindowAttention

    attentions = [name for name, module in net.named_modules() if isinstance(module, ShiftedWindowAttention)]
    return {f"{name}.{projection}" for name in attentions for projection in ("qkv", "proj")}


def _fitting(weights: dict[str, Tensor], net: nn.Module) -> dict[str, Tensor]:
    """Split attention projections, and drop the weights of auxiliary heads, which networks here do not have."""
    own = net.state_dict().keys()
    return {
        key: value for key, value in split_packed_projections(weights).items() if key in own or "aux" not in key.lower()
    }


def _read_channels(net: nn.Module, channels: int) -> None:
    """Replace the first convolution for this many channels, with its settings and PyTorch's initialization."""
    name, first = next((name, module) for name, module in net.named_modules() if isinstance(module, nn.Conv2d))
    if first.in_channels == channels:
        return
    parent = net.get_submodule(name.rpartition(".")[0])
    other = nn.Conv2d(
        channels,
        first.out_channels,
        first.kernel_size,  # type: ignore[arg-type]  # two numbers
        first.stride,  # type: ignore[arg-type]
        first.padding,  # type: ignore[arg-type]
        first.dilation,  # type: ignore[arg-type]
        bias=first.bias is not None,
        padding_mode=first.padding_mode,
    )
    setattr(parent, name.rpartition(".")[2], other)
