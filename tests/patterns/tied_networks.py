"""Small networks whose heads, features and channels are tied: with the library that each is from, and inputs of each."""

from collections.abc import Callable

import torch
import transformers
from torch import nn

from experiments.networks.networks import Tiny
from sparsefront.models.attention import replace_multihead_attention
from sparsefront.models.vit_small import VisionTransformer, VitSmall

SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}


def text(config: type, model: type, **sizes: int) -> nn.Module:
    return model(config(vocab_size=50, max_position_embeddings=40, **(sizes or SIZES)))


def torchvision_vit() -> nn.Module:
    from torchvision.models import VisionTransformer as Net

    net = Net(image_size=8, patch_size=4, num_layers=2, num_heads=4, hidden_dim=32, mlp_dim=64, num_classes=3)
    replace_multihead_attention(net)
    return net


def resnet() -> nn.Module:
    from torchvision.models.resnet import Bottleneck, ResNet

    net = ResNet(Bottleneck, [1, 1, 1, 1], num_classes=3, width_per_group=8)
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.bias)
            nn.init.normal_(module.running_mean)
    return net


def own_vit() -> nn.Module:
    from sparsefront.data.base import DataInfo

    info = DataInfo(kind="image_classification", num_classes=3, image_size=8, channels=3)
    return VisionTransformer(VitSmall(dim=32, depth=2, heads=4, patch_size=4), info)


def encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


TOKENS = {"input_ids": torch.arange(24).view(2, 12)}
IMAGES = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
NETWORKS: dict[str, tuple[Callable[[], nn.Module], object]] = {
    "bert": (lambda: text(transformers.BertConfig, transformers.BertForSequenceClassification), TOKENS),
    "roberta": (lambda: text(transformers.RobertaConfig, transformers.RobertaForSequenceClassification), TOKENS),
    "mpnet": (lambda: text(transformers.MPNetConfig, transformers.MPNetForSequenceClassification), TOKENS),
    "distilbert": (
        lambda: text(
            transformers.DistilBertConfig,
            transformers.DistilBertForSequenceClassification,
            dim=32,
            n_layers=2,
            n_heads=4,
            hidden_dim=64,
        ),
        TOKENS,
    ),
    "vit": (
        lambda: transformers.ViTForImageClassification(transformers.ViTConfig(image_size=8, patch_size=4, **SIZES)),
        {"pixel_values": IMAGES},
    ),
    "vit_small": (own_vit, (IMAGES,)),
    "torchvision": (torchvision_vit, (IMAGES,)),
    "encoder": (encoder, (torch.randn(2, 5, 32, generator=torch.Generator().manual_seed(0)),)),
    "resnet": (resnet, (torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0)),)),
    "sequence": (
        lambda: nn.Sequential(
            nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.BatchNorm1d(64), nn.GELU(), nn.Linear(64, 4)
        ),
        (torch.randn(3, 8, generator=torch.Generator().manual_seed(0)),),
    ),
}


class Gated(nn.Module):
    """Written by hand: a fused gate, a layer that is called between others, and two that make the same units."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.gate_up, self.down = nn.Linear(8, 32), nn.Linear(32, 48), nn.Linear(24, 32)
        self.out = nn.Linear(32, 4)

    def forward(self, x):
        x = self.first(x).relu()
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        return self.out(torch.tanh(x + 0.5 * self.down(gate.sigmoid() * up)))


class Depends(Gated):
    def forward(self, x):
        return super().forward(x) if x.sum() > 0 else super().forward(x)


def mobilenet() -> nn.Module:
    from torchvision.models import MobileNetV2

    return MobileNetV2(num_classes=4, width_mult=0.25)


GROUPED = {
    "num_key_value_heads": 2,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_hidden_layers": 1,
    "vocab_size": 50,
}
TINY_DECODER = {"intermediate_size": 64, "head_dim": 8, "pad_token_id": 0, **GROUPED}
OTHERS = {
    "Gated": Tiny("own", Gated, lambda: (torch.randn(2, 8),)),
    "MobileNetV2": Tiny("torchvision", mobilenet, lambda: (torch.randn(2, 3, 32, 32),)),
    "Phi-3": Tiny(
        "transformers",
        lambda: transformers.Phi3ForCausalLM(transformers.Phi3Config(pad_token_id=0, intermediate_size=64, **GROUPED)),
        lambda: TOKENS,
    ),
    **{
        name: Tiny(
            "transformers", lambda model=model, config=config: model(config(**TINY_DECODER)).eval(), lambda: TOKENS
        )
        for name, model, config in (
            ("Mistral", transformers.MistralForCausalLM, transformers.MistralConfig),
            ("Gemma-2", transformers.Gemma2ForCausalLM, transformers.Gemma2Config),
        )
    },
    "SigLIP": Tiny(
        "transformers",
        lambda: transformers.SiglipVisionModel(transformers.SiglipVisionConfig(image_size=8, patch_size=4, **SIZES)),
        lambda: {"pixel_values": IMAGES},
    ),
    "NomicBERT": Tiny(
        "transformers", lambda: text(transformers.NomicBertConfig, transformers.NomicBertModel), lambda: TOKENS
    ),
    "depends on values": Tiny("own", Depends, lambda: (torch.randn(2, 8),)),
}
