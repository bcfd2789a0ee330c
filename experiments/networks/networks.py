"""Over thirty tiny networks of transformers, torchvision, timm and PyTorch, with random weights."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import timm
import torch
import torchvision
import transformers as tf
from torch import Tensor, nn

VOCABULARY, LENGTH, WIDTH, HEADS = 96, 12, 64, 4
BODY = {"hidden_size": WIDTH, "num_hidden_layers": 2, "num_attention_heads": HEADS, "intermediate_size": 2 * WIDTH}
TEXT = {"vocab_size": VOCABULARY} | BODY
GROUPED = TEXT | {"num_key_value_heads": 2, "use_cache": False}
PICTURE = {"image_size": 32, "patch_size": 8} | BODY
Inputs = Mapping[str, Tensor] | tuple[Tensor, ...]


@dataclass(frozen=True)
class Tiny:
    """One network.

    Args:
        source: library of the network.
        make: builds the network, in float32.
        inputs: makes the inputs of one forward pass.
    """

    source: str
    make: Callable[[], nn.Module]
    inputs: Callable[[], Inputs]


def _tokens() -> Inputs:
    return {"input_ids": torch.randint(3, VOCABULARY, (2, LENGTH))}


def _pair() -> Inputs:
    return {name: torch.randint(3, VOCABULARY, (2, LENGTH)) for name in ("input_ids", "decoder_input_ids")}


def _pixels() -> Inputs:
    return {"pixel_values": torch.randn(2, 3, 32, 32)}


def _pixels_and_tokens() -> Inputs:
    return {"pixel_values": torch.randn(2, 3, 32, 32), "input_ids": torch.randint(3, VOCABULARY, (2, LENGTH))}


def _spectrum() -> Inputs:
    return {"input_features": torch.randn(2, 16, 2 * LENGTH)}


def _image() -> Inputs:
    return (torch.randn(2, 3, 32, 32),)


def _sequence() -> Inputs:
    return (torch.randn(2, LENGTH, WIDTH),)


def _of(model: str, inputs: Callable[[], Inputs] = _tokens, config: str | None = None, **settings: Any) -> Tiny:
    """A model class of transformers, with settings of its configuration."""
    made = (
        config
        or model.removesuffix("Model").removesuffix("ForCausalLM").removesuffix("ForImageClassification") + "Config"
    )
    return Tiny("transformers", lambda: getattr(tf, model)(getattr(tf, made)(**settings)), inputs)


class _LSTM(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.lstm = nn.LSTM(WIDTH, WIDTH, batch_first=True)
        self.hidden, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 4)

    def forward(self, input_ids: Tensor) -> Tensor:
        return self.head(torch.relu(self.hidden(self.lstm(self.embedding(input_ids))[0])))


def _transformer_encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 2 * WIDTH, batch_first=True, activation="gelu")
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


def _efficientnet() -> nn.Module:
    from torchvision.models.efficientnet import EfficientNet, MBConvConfig

    return EfficientNet(
        [MBConvConfig(1, 3, 1, 16, 16, 1, 1, 1), MBConvConfig(6, 3, 2, 16, 32, 1, 1, 1)], 0.0, num_classes=4
    )


def _mobilenet() -> nn.Module:
    from torchvision.models.mobilenetv3 import InvertedResidualConfig, MobileNetV3

    blocks = (16, 3, 16, 16, True, "RE", 2, 1, 1.0), (16, 3, 72, 32, False, "HS", 2, 1, 1.0)
    return MobileNetV3([InvertedResidualConfig(*block) for block in blocks], last_channel=WIDTH, num_classes=4)


def _deeplab() -> nn.Module:
    from torchvision.models._utils import IntermediateLayerGetter
    from torchvision.models.segmentation.deeplabv3 import DeepLabHead, DeepLabV3

    return DeepLabV3(IntermediateLayerGetter(_resnet(), {"layer2": "out"}), DeepLabHead(128, 4))


def _vgg() -> nn.Module:
    net = torchvision.models.VGG(torchvision.models.vgg.make_layers([32, "M", 64, 64, "M"], batch_norm=True))
    net.classifier = nn.Sequential(nn.Linear(64 * 7 * 7, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 4))
    return net


def _resnet() -> nn.Module:
    return torchvision.models.ResNet(torchvision.models.resnet.BasicBlock, [1, 1, 1, 1], num_classes=4)


def _clip() -> nn.Module:
    part = BODY | {"projection_dim": 32}
    return tf.CLIPModel(
        tf.CLIPConfig(
            text_config=part | {"vocab_size": VOCABULARY}, vision_config=part | {"image_size": 32, "patch_size": 8}
        )
    )


def _sam() -> nn.Module:
    from transformers.models.sam.modeling_sam import SamVisionEncoder

    config = tf.SamVisionConfig(
        hidden_size=WIDTH,
        output_channels=32,
        num_hidden_layers=1,
        num_attention_heads=HEADS,
        image_size=32,
        patch_size=8,
        window_size=4,
        global_attn_indexes=[0],
        mlp_dim=2 * WIDTH,
    )
    return SamVisionEncoder(config)


def _whisper() -> nn.Module:
    from transformers.models.whisper.modeling_whisper import WhisperEncoder

    config = tf.WhisperConfig(
        d_model=WIDTH,
        encoder_layers=2,
        encoder_attention_heads=HEADS,
        encoder_ffn_dim=2 * WIDTH,
        num_mel_bins=16,
        max_source_positions=LENGTH,
    )
    return WhisperEncoder(config)


_T5 = {"vocab_size": VOCABULARY, "d_model": WIDTH, "d_kv": 16, "d_ff": 2 * WIDTH, "num_layers": 2, "num_heads": HEADS}
_BART = {
    "vocab_size": VOCABULARY,
    "d_model": WIDTH,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": HEADS,
    "decoder_attention_heads": HEADS,
    "encoder_ffn_dim": 2 * WIDTH,
    "decoder_ffn_dim": 2 * WIDTH,
    "max_position_embeddings": 32,
    "use_cache": False,
}
NETWORKS: dict[str, Tiny] = {
    "BERT": _of("BertModel", **TEXT),
    "RoBERTa": _of("RobertaModel", **TEXT),
    "DistilBERT": _of(
        "DistilBertModel", vocab_size=VOCABULARY, dim=WIDTH, n_layers=2, n_heads=HEADS, hidden_dim=2 * WIDTH
    ),
    "ELECTRA": _of("ElectraModel", embedding_size=32, **TEXT),
    "ALBERT": _of("AlbertModel", embedding_size=32, **TEXT),
    "DeBERTa-v2": _of("DebertaV2Model", relative_attention=True, pos_att_type=["p2c", "c2p"], **TEXT),
    "MPNet": _of("MPNetModel", config="MPNetConfig", **TEXT),
    "ModernBERT": _of("ModernBertModel", pad_token_id=0, attn_implementation="sdpa", **TEXT),
    "ViT": _of("ViTForImageClassification", _pixels, **PICTURE),
    "DeiT": _of("DeiTModel", _pixels, **PICTURE),
    "DINOv2": _of(
        "Dinov2Model",
        _pixels,
        mlp_ratio=2,
        **{key: value for key, value in PICTURE.items() if key != "intermediate_size"},
    ),
    "Swin": _of(
        "SwinModel", _pixels, image_size=32, patch_size=2, embed_dim=32, depths=[2, 2], num_heads=[2, 4], window_size=4
    ),
    "ConvNeXt": _of("ConvNextModel", _pixels, hidden_sizes=[32, 64], depths=[1, 1], num_stages=2),
    "SAM, encoder": Tiny("transformers", _sam, _pixels),
    "CLIP": Tiny("transformers", _clip, _pixels_and_tokens),
    "Whisper, encoder": Tiny("transformers", _whisper, _spectrum),
    "T5": _of("T5Model", _pair, use_cache=False, **_T5),
    "BART": _of("BartModel", _pair, **_BART),
    "GPT-2": _of(
        "GPT2LMHeadModel",
        config="GPT2Config",
        vocab_size=VOCABULARY,
        n_embd=WIDTH,
        n_layer=2,
        n_head=HEADS,
        use_cache=False,
    ),
    "OPT": _of(
        "OPTForCausalLM",
        vocab_size=VOCABULARY,
        hidden_size=WIDTH,
        ffn_dim=2 * WIDTH,
        num_hidden_layers=2,
        num_attention_heads=HEADS,
        word_embed_proj_dim=WIDTH,
        use_cache=False,
    ),
    "Llama": _of("LlamaForCausalLM", **GROUPED),
    "Qwen2": _of("Qwen2ForCausalLM", **GROUPED),
    "Phi": _of("PhiForCausalLM", **TEXT, use_cache=False),
    "GPT-J": _of(
        "GPTJForCausalLM", vocab_size=VOCABULARY, n_embd=WIDTH, n_layer=2, n_head=HEADS, rotary_dim=8, use_cache=False
    ),
    "Mixtral": _of("MixtralForCausalLM", num_local_experts=2, **GROUPED),
    "TransformerEncoder": Tiny("torch", _transformer_encoder, _sequence),
    "LSTM": Tiny("torch", _LSTM, _tokens),
    "ResNet": Tiny("torchvision", _resnet, _image),
    "VGG": Tiny("torchvision", _vgg, _image),
    "EfficientNet": Tiny("torchvision", _efficientnet, _image),
    "MobileNetV3": Tiny("torchvision", _mobilenet, _image),
    "DeepLabV3": Tiny("torchvision", _deeplab, _image),
    "ViT, torchvision": Tiny(
        "torchvision",
        lambda: torchvision.models.VisionTransformer(32, 8, 2, HEADS, WIDTH, 2 * WIDTH, num_classes=4),
        _image,
    ),
    "ViT, timm": Tiny(
        "timm",
        lambda: timm.models.VisionTransformer(img_size=32, patch_size=8, embed_dim=WIDTH, depth=2, num_heads=HEADS),
        _image,
    ),
    "ConvNeXt, timm": Tiny("timm", lambda: timm.models.ConvNeXt(depths=(1, 1, 1, 1), dims=(16, 32, 32, 64)), _image),
}
