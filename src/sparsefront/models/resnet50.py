"""torchvision's ResNet-50."""

from typing import TYPE_CHECKING, Any, ClassVar

from torch import nn

from sparsefront.errors import InvalidSetting
from sparsefront.models.base import linear_and_conv_layers
from sparsefront.models.torchvision_classifier import TorchvisionModel, TorchvisionSource
from sparsefront.settings_class import settings_class

if TYPE_CHECKING:
    from sparsefront.data.base import DataInfo

BODY = ("layer1", "layer2", "layer3", "layer4")


@settings_class()
class ResNet50(TorchvisionModel):
    """Settings of model resnet50.

    Args:
        weights: name in torchvision, e.g. DEFAULT or IMAGENET1K_V2; null = path or random.
        path: local checkpoint.
        small_images: a 3x3 stem with stride 1 and no max-pooling, usual for images of 32 or 64 pixels; torchvision's own stem
            reduces the side to 1/32.
        prune_head: also prune the classifier.
    """

    fingerprinted: ClassVar[frozenset[str]] = frozenset({"weights", "path", "small_images"})

    weights: str | None = None
    path: str | None = None
    small_images: bool = False
    prune_head: bool = False

    def __post_init__(self) -> None:
        if self.small_images and self.weights is not None:
            raise InvalidSetting(
                "small_images", True, f"weights {self.weights} belong to the 7x7 stem; set weights=null or path"
            )

    @property
    def variant(self) -> str | None:
        return "small_images" if self.small_images else None

    @property
    def source(self) -> TorchvisionSource:
        return TorchvisionSource("resnet50", self.weights, self.path)

    def fingerprint(self) -> dict[str, Any]:
        return {"model": "resnet50", "small_images": self.small_images, "weights": self.source.fingerprint()}

    @property
    def head(self) -> str:
        return "fc"

    def prunable(self, net: nn.Module) -> list[str]:
        """All convolutions of the four stages including shortcuts; the stem reads the image and stays dense."""
        return linear_and_conv_layers(net, inside=(*BODY, "fc") if self.prune_head else BODY)

    def network(self, info: "DataInfo") -> nn.Module:
        from torchvision.models import resnet50

        net = resnet50(weights=None, num_classes=info.num_classes)
        if self.small_images:
            net.conv1 = _stem(info.channels, kernel_size=3, stride=1)
            net.maxpool = nn.Identity()
        elif info.channels != net.conv1.in_channels:
            net.conv1 = _stem(info.channels, kernel_size=7, stride=2)
        return net


def _stem(channels: int, *, kernel_size: int, stride: int) -> nn.Conv2d:
    """First convolution with torchvision's initialization."""
    stem = nn.Conv2d(channels, 64, kernel_size, stride=stride, padding=kernel_size // 2, bias=False)
    nn.init.kaiming_normal_(stem.weight, mode="fan_out", nonlinearity="relu")
    return stem
