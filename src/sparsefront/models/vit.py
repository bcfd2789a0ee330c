"""torchvision's ViT-B/16 and ViT-L/16, with attention projections that can be pruned and swapped."""

import math
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from torch import Tensor, nn

from sparsefront.errors import InvalidSetting
from sparsefront.models.attention import replace_multihead_attention, split_packed_projections
from sparsefront.models.base import linear_and_conv_layers
from sparsefront.models.torchvision_classifier import TorchvisionModel, TorchvisionSource
from sparsefront.settings_class import settings_class

if TYPE_CHECKING:
    from sparsefront.data.base import DataInfo

PATCH_SIZE = 16
POSITIONS = "encoder.pos_embedding"


@settings_class()
class Vit(TorchvisionModel):
    """Settings of model vit.

    Args:
        variant: vit_b_16 or vit_l_16, torchvision's names.
        weights: name in torchvision, e.g. DEFAULT or IMAGENET1K_V1; null = path or random.
        path: local checkpoint, with packed or separate attention projections, for any image size: position embeddings are
            interpolated.
        prune_head: also prune the classifier.
    """

    fingerprinted: ClassVar[frozenset[str]] = frozenset({"variant", "weights", "path"})

    variant: Literal["vit_b_16", "vit_l_16"] = "vit_b_16"
    weights: str | None = None
    path: str | None = None
    prune_head: bool = False

    @property
    def source(self) -> TorchvisionSource:
        return TorchvisionSource(self.variant, self.weights, self.path)

    def fingerprint(self) -> dict[str, Any]:
        return {"model": self.variant, "weights": self.source.fingerprint()}

    @property
    def head(self) -> str:
        return "heads"

    def fit(self, weights: dict[str, Tensor], net: nn.Module) -> dict[str, Tensor]:
        return _fit_positions(split_packed_projections(weights), net, path=self.source.misfit_name)

    def prunable(self, net: nn.Module) -> list[str]:
        """q, k, v, out and both MLP layers of every block, and with prune_head the head; not the patch projection."""
        return linear_and_conv_layers(net, inside=("encoder", "heads") if self.prune_head else ("encoder",))

    def network(self, info: "DataInfo") -> nn.Module:
        """Build with random weights; the network only supports images of this size."""
        from torchvision.models import get_model

        if info.image_size % PATCH_SIZE:
            raise InvalidSetting(
                "variant",
                self.variant,
                f"cuts images into patches of {PATCH_SIZE} pixels, which does not divide the dataset's image size "
                f"{info.image_size}: use images of 32, 64, ... 224 pixels, or model vit_small",
            )
        net = get_model(self.variant, weights=None, image_size=info.image_size, num_classes=info.num_classes)
        if info.channels != net.conv_proj.in_channels:
            net.conv_proj = _patch_projection(info.channels, net.conv_proj.out_channels)
        replace_multihead_attention(net)
        return net


def _patch_projection(channels: int, width: int) -> nn.Conv2d:
    """torchvision's patch projection, with its initialization, for another number of channels."""
    projection = nn.Conv2d(channels, width, kernel_size=PATCH_SIZE, stride=PATCH_SIZE)
    nn.init.trunc_normal_(projection.weight, std=math.sqrt(1 / (channels * PATCH_SIZE**2)))
    nn.init.zeros_(projection.bias)
    return projection


def _fit_positions(weights: dict[str, Tensor], net: nn.Module, *, path: str) -> dict[str, Tensor]:
    """Interpolate position embeddings (bicubic, torchvision's function) to the net's grid, if the grids differ.

    Raises:
        InvalidSetting: they are not a square grid plus a class token.
    """
    from torchvision.models.vision_transformer import interpolate_embeddings

    positions = weights.get(POSITIONS)
    if positions is None or positions.shape == net.encoder.pos_embedding.shape:
        return weights
    try:
        return interpolate_embeddings(net.image_size, net.patch_size, dict(weights))
    except ValueError as error:
        raise InvalidSetting("path", path, f"position embeddings {list(positions.shape)} are no square grid") from error
