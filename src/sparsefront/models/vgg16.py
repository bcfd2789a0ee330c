"""torchvision's VGG-16, with and without BatchNorm."""

from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import nn

from sparsefront.errors import InvalidSetting
from sparsefront.models.base import linear_and_conv_layers
from sparsefront.models.torchvision_classifier import TorchvisionModel, TorchvisionSource
from sparsefront.settings_class import settings_class

if TYPE_CHECKING:
    from sparsefront.data.base import DataInfo

FIRST = "features.0"
SMALLEST = 32  # pixels: one is left after halving five times


@settings_class()
class Vgg16(TorchvisionModel):
    """Settings of model vgg16 (Simonyan and Zisserman, "Very Deep Convolutional Networks for Large-Scale Image Recognition",
    2015).

    Args:
        batch_norm: after every convolution.
        weights: name in torchvision for the network with or without BatchNorm, e.g. DEFAULT; null = path or random.
        path: local checkpoint.
        small_images: global average pooling and one Linear after the convolutions, usual for images of 32 pixels; torchvision
            has three Linears of 124 M weights on 7 x 7 pixels. Both support images of any size from 32.
        prune_head: also prune the last Linear.
    """

    fingerprinted: ClassVar[frozenset[str]] = frozenset({"batch_norm", "weights", "path", "small_images"})

    batch_norm: bool = True
    weights: str | None = None
    path: str | None = None
    small_images: bool = False
    prune_head: bool = False

    def __post_init__(self) -> None:
        if self.small_images and self.weights is not None:
            allowed = f"weights {self.weights} belong to three Linears; set weights=null or path"
            raise InvalidSetting("small_images", True, allowed)

    @property
    def variant(self) -> str:
        return "_".join(["bn" if self.batch_norm else "plain", *(["small_images"] if self.small_images else [])])

    @property
    def source(self) -> TorchvisionSource:
        return TorchvisionSource(self._builder, self.weights, self.path)

    def fingerprint(self) -> dict[str, Any]:
        settings = {"batch_norm": self.batch_norm, "small_images": self.small_images}
        return {"model": "vgg16", **settings, "weights": self.source.fingerprint()}

    @property
    def head(self) -> str:
        return "classifier" if self.small_images else "classifier.6"

    def prunable(self, net: nn.Module) -> list[str]:
        """All convolutions except the first, which reads the image, and all Linears except the last."""
        layers = linear_and_conv_layers(net, inside=("features", "classifier"))
        dense = {FIRST} if self.prune_head else {FIRST, layers[-1]}
        return [name for name in layers if name not in dense]

    @property
    def _builder(self) -> str:
        return "vgg16_bn" if self.batch_norm else "vgg16"

    def network(self, info: "DataInfo") -> nn.Module:
        from torchvision.models import get_model

        if info.image_size < SMALLEST:
            allowed = f"halves images five times: {SMALLEST} pixels at least, and the dataset's have {info.image_size}"
            raise InvalidSetting("small_images", self.small_images, allowed)
        if not self.small_images:
            net = get_model(self._builder, weights=None, num_classes=info.num_classes)
            if info.channels != net.features[0].in_channels:
                net.features[0] = _reading(info.channels, net.features[0])
            return net
        with torch.device("meta"):  # skip initializing three Linears of 124 M weights
            net = get_model(self._builder, weights=None, num_classes=info.num_classes)
            net.features[0] = _reading(info.channels, net.features[0])
        net.features.to_empty(device=torch.get_default_device())
        _initialize(net.features)
        *_, last = (module.out_channels for module in net.features if isinstance(module, nn.Conv2d))
        net.avgpool, net.classifier = nn.AdaptiveAvgPool2d(1), nn.Linear(last, info.num_classes)
        _initialize(net.classifier)
        return net


def _reading(channels: int, first: nn.Conv2d) -> nn.Conv2d:
    """A first convolution for images with this many channels."""
    new = nn.Conv2d(channels, first.out_channels, 3, padding=1)
    _initialize(new)
    return new


def _initialize(part: nn.Module) -> None:
    """torchvision's initialization."""
    for module in part.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, 0, 0.01)
            nn.init.zeros_(module.bias)
        elif isinstance(module, nn.BatchNorm2d):
            module.reset_parameters()
