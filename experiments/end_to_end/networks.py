"""The networks of the study, their inputs and masks: random weights, whose rows and columns are uneven as trained ones are."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from sparsefront_kernels import SparseFormat
from torch import Tensor, nn

from experiments.end_to_end.points import Point
from sparsefront.allocation.global_threshold import GlobalThreshold
from sparsefront.allocation.per_layer import PerLayer
from sparsefront.data.base import DataInfo
from sparsefront.errors import InvalidSetting
from sparsefront.export.packed_layers import LayerRecord, Manifest, store
from sparsefront.importance.magnitude import Magnitude
from sparsefront.masks.weight_view import as_matrix, like_weight
from sparsefront.measure.correctness import floating_tensors
from sparsefront.models.base import linear_and_conv_layers
from sparsefront.models.bert import SIZES as BERT_SIZES
from sparsefront.models.resnet50 import BODY as STAGES
from sparsefront.patterns.base import Pattern
from sparsefront.pruning.make_masks import make_masks
from sparsefront.pruning.operator_masks import UnevenWeights, pattern_masks

SPREAD = 0.02  # standard deviation of weights, before rows and columns are scaled, and of biases
IMAGE_SIZE, CLASSES = 224, 1000
BRANCH = 0.25  # factor of what a ResNet's block adds to its shortcut: with 1, random weights would amplify roundings
LABELS = 64  # of texts: two logits of random weights cancel by chance, and their relative error would say nothing
SHORTEST = 0.25  # of the length: how short a padded text may be
UNMASKED = "sdpa_unmasked"
ALLOCATIONS = {"per_layer": PerLayer, "global_threshold": GlobalThreshold}


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


def build(model: str, device: torch.device, *, tiny: bool = False, masked: bool = True) -> Network:
    """A network of one of the names of `points.MODELS`; the same weights at every call on one kind of device.

    Args:
        tiny: two narrow layers instead, to try the study itself.
        masked: whether texts come with an attention mask.
    Raises:
        InvalidSetting: no such model.
    """
    makers = {"bert_base": _bert, "bert_large": _bert, "vit_b_16": _vit, "vit_l_16": _vit, "resnet50": _resnet}
    if model not in makers:
        raise InvalidSetting("model", model, f"is one of {', '.join(makers)}")
    torch.manual_seed(0)
    with torch.device(device):
        net, body = makers[model](model, tiny, masked)
    prunable = linear_and_conv_layers(net, inside=STAGES if model == "resnet50" else (body,))
    _uneven(net, prunable)
    if model == "resnet50":
        _take_statistics(net, device)
    return Network(net.eval().requires_grad_(False), prunable, body)


def inputs_of(
    net: nn.Module, batch: int, length: int | None, *, attention_mask: str, device: torch.device, dtype: torch.dtype
) -> dict[str, Tensor]:
    """Keyword arguments of one forward: random tokens between the marks of a sentence, or random images."""
    drawn = torch.Generator(device).manual_seed(1)
    if length is None:
        side = net.image_size
        return {"x": torch.randn(batch, 3, side, side, generator=drawn, device=device).to(dtype)}
    vocabulary = net.config.vocab_size
    tokens = torch.randint(vocabulary // 8, vocabulary, (batch, length), generator=drawn, device=device)
    shortest = max(1, int(length * SHORTEST)) if attention_mask == "padded" else length
    lengths = torch.randint(shortest, length + 1, (batch, 1), generator=drawn, device=device)
    lengths[0] = length
    real = torch.arange(length, device=device) < lengths
    tokens[:, 0] = 101 % vocabulary  # [CLS]
    tokens = tokens.scatter(1, lengths - 1, 102 % vocabulary) * real  # [SEP], then [PAD]
    inputs = {"input_ids": tokens}
    return inputs if attention_mask == "none" else inputs | {"attention_mask": real.long()}


@torch.inference_mode()
def outputs_of(network_body: str, net: nn.Module, inputs: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """(last hidden states, logits) of one forward, both float32 or wider."""
    seen: list[Tensor] = []
    module = net.get_submodule(network_body)
    handle = module.register_forward_hook(lambda module, args, result: seen.append(floating_tensors(result)[0]))
    try:
        logits = floating_tensors(net(**inputs))[0]
    finally:
        handle.remove()
    return _wide(seen[-1]), _wide(logits)


def _wide(tensor: Tensor) -> Tensor:
    return tensor if tensor.dtype == torch.float64 else tensor.float()


def _bert(model: str, tiny: bool, masked: bool) -> tuple[nn.Module, str]:
    from transformers import BertConfig, BertForSequenceClassification

    _register_unmasked_attention()
    size = BERT_SIZES["tiny" if tiny else model.removeprefix("bert_")]
    config = BertConfig(**size, num_labels=LABELS, attn_implementation="sdpa" if masked else UNMASKED)
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


def _vit(model: str, tiny: bool, masked: bool) -> tuple[nn.Module, str]:
    from torchvision.models import VisionTransformer

    from sparsefront.models.attention import replace_multihead_attention
    from sparsefront.models.vit import Vit

    if not tiny:
        return Vit(variant=model).build(DataInfo("image_classification", CLASSES, IMAGE_SIZE, 3)), "encoder"
    net = VisionTransformer(64, 16, num_layers=2, num_heads=2, hidden_dim=128, mlp_dim=256, num_classes=10)
    replace_multihead_attention(net)
    return net, "encoder"


def _resnet(model: str, tiny: bool, masked: bool) -> tuple[nn.Module, str]:
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


# Pruned in memory: masks by the patterns' own code, and what a swap reads of an export.


@dataclass(frozen=True)
class Masks:
    """Masks of a network.

    Args:
        pattern: whose they are, with its settings.
        sparsity: that was asked for.
        layers: pruned layer -> bool [N, K], True = keep.
        dense_layers: layer that the pattern cannot divide -> why.
    """

    pattern: Pattern
    sparsity: float
    layers: dict[str, Tensor]
    dense_layers: dict[str, str]

    @property
    def densities(self) -> dict[str, float]:
        return {name: mask.count_nonzero().item() / mask.numel() for name, mask in self.layers.items()}


def pattern_of(point: Point) -> Pattern:
    """The pattern of a row, its own defaults where the row says nothing.

    Raises:
        InvalidSetting: a setting that the pattern does not have, or a value that it does not take.
    """
    setting = point.setting
    texts = dict(part.split("=", 1) for part in point.pattern_settings.split())
    settings = {key: _value(text) for key, text in texts.items()}
    if setting.group_m is not None:
        settings |= {"n": round(setting.group_m * (1 - setting.sparsity)), "m": setting.group_m}
    return pattern_masks(setting.granularity, pattern=setting.pattern, **settings).of


def distribution_of(pattern: Pattern) -> str:
    """Where survivors may be: free, or balanced."""
    return getattr(pattern, "distribution", "balanced" if getattr(pattern, "balanced", False) else "free")


def prune(network: Network, point: Point) -> Masks:
    """Masks of a network's own weights, on its device; the network stays as it is."""
    pattern, sparsity = pattern_of(point), point.setting.sparsity
    weights = {name: as_matrix(network.net.get_submodule(name).weight.detach()) for name in network.prunable}
    dense = {
        name: why
        for name, weight in weights.items()
        if (why := pattern.unsupported_reason(tuple(weight.shape), sparsity))
    }
    if point.allocation not in ALLOCATIONS:
        raise InvalidSetting("allocation", point.allocation, f"is one of {', '.join(ALLOCATIONS)}")
    importance = Magnitude().scores({name: weight for name, weight in weights.items() if name not in dense})
    masks = make_masks(importance, pattern, ALLOCATIONS[point.allocation](), sparsity)
    return Masks(pattern, sparsity, masks, dense)


@torch.no_grad()
def apply_masks(net: nn.Module, masks: Mapping[str, Tensor]) -> nn.Module:
    """Zero what the masks prune, in place."""
    for name, mask in masks.items():
        weight = net.get_submodule(name).weight
        weight.mul_(like_weight(mask, weight))
    return net


class PrunedInMemory:
    """What `swap` reads of an export, without files: manifest, masks, weights and formats of a masked network."""

    def __init__(self, masked: nn.Module, masks: Masks) -> None:
        self._net, self.masks, self._pattern = masked, masks.layers, masks.pattern
        self._sparsity = masks.sparsity
        densities = masks.densities
        layers = {name: self._record(mask, densities[name]) for name, mask in masks.layers.items()}
        self.manifest = Manifest(masks.pattern.name, {}, masks.sparsity, layers, masks.dense_layers)

    def state_dict(self) -> dict[str, Any]:
        return self._net.state_dict()

    def format(self, layer: str) -> SparseFormat:
        weight = as_matrix(self._net.get_submodule(layer).weight.detach())
        return store(weight, self.masks[layer], self._pattern.storage(tuple(weight.shape), self._sparsity))

    def _record(self, mask: Tensor, density: float) -> LayerRecord:
        shape = tuple(mask.shape)
        family, parameters = self._pattern.storage(shape, self._sparsity)
        return LayerRecord(family, parameters, {}, shape, round(density * mask.numel()), density)


def _value(text: str) -> Any:
    """As `--mask-settings` of the operator benchmark reads it."""
    words = {"true": True, "false": False, "null": None}
    if text in words:
        return words[text]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
