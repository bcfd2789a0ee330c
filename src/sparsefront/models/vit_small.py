"""A compact pre-norm vision transformer for small images: the default model."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from pydantic import PositiveInt
from torch import Tensor, nn

from sparsefront.errors import InvalidSetting
from sparsefront.models.attention import SelfAttention
from sparsefront.models.base import Model, linear_and_conv_layers
from sparsefront.models.checkpoint import load_weights, read_weights, weights_file, weights_fingerprint
from sparsefront.settings_class import settings_class

if TYPE_CHECKING:
    from sparsefront.data.base import DataInfo


SIZES = ("dim", "depth", "heads", "mlp_ratio", "patch_size")


@settings_class()
class VitSmall(Model):
    """Settings of model vit_small; by default every prunable layer is 256 to 1024 wide.

    Args:
        dim: width of the tokens.
        depth: number of blocks.
        heads: attention heads; must divide dim.
        mlp_ratio: MLP hidden width divided by dim.
        patch_size: side of the square patches, in pixels; must divide the image size.
        path: local checkpoint; null = random weights.
        prune_head: also prune the classifier.
    """

    kinds: ClassVar[tuple[str, ...]] = ("image_classification",)
    fingerprinted: ClassVar[frozenset[str]] = frozenset({*SIZES, "path"})

    dim: PositiveInt = 256
    depth: PositiveInt = 4
    heads: PositiveInt = 4
    mlp_ratio: PositiveInt = 4
    patch_size: PositiveInt = 4
    path: str | None = None
    prune_head: bool = False

    def __post_init__(self) -> None:
        if self.dim % self.heads:
            raise InvalidSetting("heads", self.heads, f"must divide dim={self.dim}")

    @property
    def variant(self) -> str | None:
        """The sizes that differ from the defaults: `dim 64 depth 1`."""
        sizes = [f"{key} {getattr(self, key)}" for key in SIZES if getattr(self, key) != getattr(type(self), key)]
        return " ".join(sizes) or None

    def check(self) -> None:
        if self.path is not None:
            weights_file(self.path)

    def fingerprint(self) -> dict[str, Any]:
        return {
            "model": "vit_small",
            **{key: getattr(self, key) for key in SIZES},
            "weights": "random" if self.path is None else weights_fingerprint(self.path),
        }

    def build(self, info: "DataInfo") -> nn.Module:
        net = self._net(info)
        if self.path is not None:
            load_weights(net, read_weights(self.path), head="head", path=self.path)
        return net

    def skeleton(self, info: "DataInfo") -> nn.Module:
        with torch.device("meta"):
            return self._net(info)

    def architecture(self, info: "DataInfo", exported: Path) -> nn.Module:
        return self._net(info)

    def prunable(self, net: nn.Module) -> list[str]:
        """q, k, v, out, fc1, fc2 of every block, and with prune_head the classifier; not the patch projection."""
        return linear_and_conv_layers(net, inside=("blocks", "head") if self.prune_head else ("blocks",))

    def _net(self, info: "DataInfo") -> "VisionTransformer":
        if info.image_size % self.patch_size:
            allowed = f"must divide the dataset's image size {info.image_size}"
            raise InvalidSetting("patch_size", self.patch_size, allowed)
        return VisionTransformer(self, info)


class VisionTransformer(nn.Module):
    """Patches -> tokens -> pre-norm blocks -> mean over the tokens -> classes.

    After Dosovitskiy et al., "An Image is Worth 16x16 Words", 2021, with the mean of the tokens instead of a class token:
    small images have few tokens, and one more would cost a quarter of the time.
    """

    def __init__(self, settings: VitSmall, info: "DataInfo") -> None:
        super().__init__()
        tokens = (info.image_size // settings.patch_size) ** 2
        self.patch_embed = PatchEmbedding(info.channels, settings.dim, settings.patch_size)
        self.pos_embed = nn.Parameter(torch.zeros(1, tokens, settings.dim))
        self.blocks = nn.ModuleList(
            Block(settings.dim, settings.heads, settings.mlp_ratio * settings.dim) for _ in range(settings.depth)
        )
        self.norm = nn.LayerNorm(settings.dim, eps=1e-6)
        self.head = nn.Linear(settings.dim, info.num_classes)
        self.apply(_initialize)
        nn.init.trunc_normal_(self.pos_embed, std=0.02)

    def forward(self, x: Tensor) -> Tensor:  # [B, C, H, W] -> [B, classes]
        x = self.patch_embed(x) + self.pos_embed
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x).mean(dim=1))


class PatchEmbedding(nn.Module):
    """Non-overlapping square patches, each projected to a token."""

    def __init__(self, channels: int, dim: int, patch_size: int) -> None:
        super().__init__()
        self.proj = nn.Conv2d(channels, dim, kernel_size=patch_size, stride=patch_size)

    def forward(self, x: Tensor) -> Tensor:  # [B, C, H, W] -> [B, tokens, dim]
        return self.proj(x).flatten(2).transpose(1, 2)


class Block(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, dim: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim, eps=1e-6)
        self.attn = SelfAttention(dim, heads)
        self.norm2 = nn.LayerNorm(dim, eps=1e-6)
        self.mlp = Mlp(dim, hidden)

    def forward(self, x: Tensor) -> Tensor:  # [B, tokens, dim] -> [B, tokens, dim]
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Mlp(nn.Module):
    """Two Linears with a GELU between."""

    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(dim, hidden)
        self.act = nn.GELU()
        self.fc2 = nn.Linear(hidden, dim)

    def forward(self, x: Tensor) -> Tensor:  # [B, tokens, dim] -> [B, tokens, dim]
        return self.fc2(self.act(self.fc1(x)))


def _initialize(module: nn.Module) -> None:
    """Small random weights and zero biases in every Linear, as usual for ViTs; other layers keep PyTorch's defaults."""
    if isinstance(module, nn.Linear):
        nn.init.trunc_normal_(module.weight, std=0.02)
        nn.init.zeros_(module.bias)
