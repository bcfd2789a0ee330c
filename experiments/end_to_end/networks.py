"""The networks of the study, their inputs and masks: random weights, whose rows and columns are uneven as trained ones are."""

import copy
import math
from dataclasses import dataclass

import torch
import yaml
from sparsefront_kernels.bench.correctness import products_in
from torch import Tensor, nn

import sparsefront as sf
from experiments.end_to_end.points import Point
from sparsefront.data.base import DataInfo
from sparsefront.errors import InvalidSetting
from sparsefront.masks.weight_view import as_matrix, like_weight
from sparsefront.measure.correctness import floating_tensors, relative_error
from sparsefront.models.base import linear_and_conv_layers
from sparsefront.models.bert import SIZES as BERT_SIZES
from sparsefront.models.resnet50 import BODY as STAGES
from sparsefront.patterns.base import Pattern
from sparsefront.pruning.operator_masks import UnevenWeights, pattern_masks

SPREAD = 0.02  # standard deviation of weights, before rows and columns are scaled, and of biases
IMAGE_SIZE, CLASSES = 224, 1000
BRANCH = 0.25  # factor of what a ResNet's block adds to its shortcut: with 1, random weights would amplify roundings
LABELS = (
    64  # of texts, with a bias of one: logits of random weights may cancel, and their relative error would say nothing
)
SHORTEST = 0.25  # of the length: how short a padded text may be
UNMASKED = "sdpa_unmasked"
WIDER = {torch.float16: torch.float32, torch.bfloat16: torch.float32, torch.float32: torch.float64}


@dataclass(frozen=True)
class Network:
    """A dense network in float32.

    Args:
        net: in eval mode.
        prunable: names of the Linears and convolutions that patterns prune.
        body: name of the module whose result are the last hidden states.
    """

    net: nn.Module
    prunable: list[str]
    body: str


def build(model: str, device: torch.device, *, tiny: bool = False) -> Network:
    """A network of one of the names of `points.MODELS`; the same weights at every call on one kind of device.

    Args:
        tiny: two narrow layers instead, to try the study itself.
    Raises:
        InvalidSetting: no such model.
    """
    makers = {"bert_base": _bert, "bert_large": _bert, "vit_b_16": _vit, "vit_l_16": _vit, "resnet50": _resnet}
    if model not in makers:
        raise InvalidSetting("model", model, f"is one of {', '.join(makers)}")
    torch.manual_seed(0)
    with torch.device(device):
        net, body = makers[model](model, tiny)
    prunable = linear_and_conv_layers(net, inside=STAGES if model == "resnet50" else (body,))
    _uneven(net, prunable)
    if model == "resnet50":
        _take_statistics(net, device)
    elif model.startswith("bert"):
        nn.init.ones_(net.classifier.bias)
    return Network(net.eval().requires_grad_(False), prunable, body)


def inputs_of(
    net: nn.Module, batch: int, length: int | None, *, device: torch.device, dtype: torch.dtype
) -> dict[str, Tensor]:
    """Keyword arguments of one forward: random tokens between the marks of a sentence, without padding, or random images."""
    drawn = torch.Generator(device).manual_seed(1)
    if length is None:
        side = net.image_size
        return {"x": torch.randn(batch, 3, side, side, generator=drawn, device=device).to(dtype)}
    vocabulary = net.config.vocab_size
    tokens = torch.randint(vocabulary // 8, vocabulary, (batch, length), generator=drawn, device=device)
    tokens[:, 0], tokens[:, -1] = 101 % vocabulary, 102 % vocabulary  # [CLS] and [SEP]
    return {"input_ids": tokens}


@torch.inference_mode()
def outputs_of(body: str, net: nn.Module, inputs: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """(last hidden states, logits) of one forward, both float32 or wider."""
    seen: list[Tensor] = []
    module = net.get_submodule(body)
    handle = module.register_forward_hook(lambda module, args, result: seen.append(floating_tensors(result)[0]))
    try:
        logits = floating_tensors(net(**inputs))[0]
    finally:
        handle.remove()
    states, logits = (one if one.dtype == torch.float64 else one.float() for one in (seen[-1], logits))
    return states, logits


def _bert(model: str, tiny: bool) -> tuple[nn.Module, str]:
    from transformers import BertConfig, BertForSequenceClassification

    _register_unmasked_attention()
    size = BERT_SIZES["tiny" if tiny else model.removeprefix("bert_")]
    config = BertConfig(**size, num_labels=LABELS, attn_implementation=UNMASKED)
    return BertForSequenceClassification(config), "bert.encoder"


def _register_unmasked_attention() -> None:
    """PyTorch's attention for texts without padding.

    While a graph is recorded or code is compiled, transformers makes a mask that masks nothing, which no fast attention kernel
    takes. Its own place for other attention says that there is none.
    """
    from transformers import AttentionInterface
    from transformers.integrations.sdpa_attention import sdpa_attention_forward
    from transformers.masking_utils import AttentionMaskInterface

    AttentionInterface.register(UNMASKED, sdpa_attention_forward)
    AttentionMaskInterface.register(UNMASKED, lambda *args, **kwargs: None)


def _vit(model: str, tiny: bool) -> tuple[nn.Module, str]:
    from torchvision.models import VisionTransformer

    from sparsefront.models.attention import replace_multihead_attention
    from sparsefront.models.vit import Vit

    if not tiny:
        return Vit(variant=model).build(DataInfo("image_classification", CLASSES, IMAGE_SIZE, 3)), "encoder"
    net = VisionTransformer(64, 16, num_layers=2, num_heads=2, hidden_dim=128, mlp_dim=256, num_classes=10)
    replace_multihead_attention(net)
    return net, "encoder"


def _resnet(model: str, tiny: bool) -> tuple[nn.Module, str]:
    from torchvision.models import ResNet
    from torchvision.models.resnet import Bottleneck

    net = ResNet(Bottleneck, [1, 1, 1, 1] if tiny else [3, 4, 6, 3], num_classes=10 if tiny else CLASSES)
    net.image_size = 64 if tiny else IMAGE_SIZE
    for module in net.modules():
        if isinstance(module, Bottleneck):
            nn.init.constant_(module.bn3.weight, BRANCH)
    return net, STAGES[-1]


@torch.no_grad()
def _take_statistics(net: nn.Module, device: torch.device) -> None:
    """BatchNorm's, of a batch of noise: else activations would grow or vanish from layer to layer."""
    images = torch.randn(8, 3, net.image_size, net.image_size, device=device)
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = None  # the plain average of what is seen
    net.train()(images)
    net.eval()


@torch.no_grad()
def _uneven(net: nn.Module, prunable: list[str]) -> None:
    """Uneven weights for what is pruned; biases that are not zero; a head that is not zero."""
    for seed, name in enumerate(prunable):
        layer = net.get_submodule(name)
        drawn = UnevenWeights(seed=seed).weight(*as_matrix(layer.weight).shape, layer.weight.device)
        layer.weight.copy_(like_weight(drawn * SPREAD, layer.weight))
    for name, module in net.named_modules():
        if isinstance(module, nn.Linear):
            if name not in prunable:
                module.weight.normal_(std=SPREAD)
            if module.bias is not None:
                module.bias.normal_(std=SPREAD)


def pattern_of(point: Point) -> Pattern:
    """The pattern of a row, its own defaults where the row says nothing.

    Raises:
        InvalidSetting: a setting that the pattern does not have, or a value that it does not take.
    """
    setting = point.setting
    texts = dict(part.split("=", 1) for part in point.pattern_settings.split())
    settings = {key: yaml.safe_load(text) for key, text in texts.items()}
    if setting.group_m is not None:
        settings |= {"n": round(setting.group_m * (1 - setting.sparsity)), "m": setting.group_m}
    return pattern_masks(setting.granularity, pattern=setting.pattern, **settings).of


def prune(network: Network, point: Point) -> sf.Masks:
    """Prune a network in place, by magnitude; layers that the pattern cannot divide stay dense."""
    return sf.prune(network.net, pattern_of(point), point.setting.sparsity, layers=network.prunable, tell=len)


class Pruned:
    """A row's networks in the measured dtype: `dense`, and `net` with zeros, which a swap gives its kernels.

    Args:
        dtype: that of the row; float32 on a CPU, which has no fast fp16.
        tiny: see `build`.
    Raises:
        RuntimeError: the device has no memory for the network in a wider type.
    """

    def __init__(self, point: Point, device: torch.device, dtype: torch.dtype, *, tiny: bool = False) -> None:
        network = build(point.model, device, tiny=tiny)
        self.body, self.pattern = network.body, pattern_of(point)
        self.dense = copy.deepcopy(network.net).to(dtype)
        self.masks = prune(network, point)
        self.net = network.net.to(dtype)
        self.inputs = inputs_of(self.dense, point.batch, point.sequence_length, device=device, dtype=dtype)
        wide = WIDER[dtype]
        inputs = {name: value.to(wide) if value.is_floating_point() else value for name, value in self.inputs.items()}
        self.masked_outputs = outputs_of(self.body, self.net, self.inputs)
        with products_in("fp32"):
            self.expected = outputs_of(self.body, copy.deepcopy(self.net).to(wide), inputs)

    def errors(self) -> "Errors":
        """Those of `net` as it is now."""
        pairs = (
            (outputs, self.expected) for outputs in (outputs_of(self.body, self.net, self.inputs), self.masked_outputs)
        )
        errors = [tuple(map(relative_error, outputs, expected)) for outputs, expected in pairs]
        return Errors(*errors[0], *errors[1])

    @property
    def densities(self) -> list[float]:
        """Of each pruned layer."""
        return [mask.count_nonzero().item() / mask.numel() for mask in self.masks.values()]


@dataclass(frozen=True)
class Errors:
    """Relative errors against the masked network in a wider type, multiplied densely with the same weights.

    Args:
        outputs, logits: last hidden states and logits of the swapped network.
        dense_outputs, dense_logits: likewise of the masked one in the measured dtype.
    """

    outputs: float
    logits: float
    dense_outputs: float
    dense_logits: float

    @property
    def ratio(self) -> float:
        """Error of the swapped network over that of the masked one."""
        return self.outputs / self.dense_outputs if self.dense_outputs > 0 else math.inf
