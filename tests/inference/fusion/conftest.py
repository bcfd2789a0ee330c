"""Networks of encoder blocks, pruned by a pattern, and what the pass is told of them."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from sparsefront_kernels import SparseFormat
from sparsefront_kernels.tuning import store as tuning_store
from sparsefront_kernels.tuning.launches import forget_choices
from torch import Tensor, nn

from sparsefront.data.base import DataInfo
from sparsefront.export.packed_layers import store
from sparsefront.inference.fusion import block_times, product_choice
from sparsefront.inference.fusion.fused import FusedBlock, OriginalCode
from sparsefront.inference.fusion.product_choice import ProductChooser
from sparsefront.measure.timers import KernelTime
from sparsefront.measure.variants import FusedPart
from sparsefront.models.bert import Bert
from sparsefront.models.vit_small import VitSmall
from sparsefront.patterns.base import Pattern


@dataclass
class Pruned:
    """A masked network, its layers as the pass wants them, and inputs: the first is the batch that is measured."""

    net: nn.Module
    formats: dict[str, SparseFormat]
    masks: dict[str, Tensor]
    inputs: list[dict[str, Any]]


def prune(net: nn.Module, layers: Iterable[str], pattern: Pattern, sparsity: float = 0.5) -> tuple[dict, dict]:
    """Formats and masks; weights get rows of uneven size, so that whole outputs go, and biases that are not zero."""
    formats, masks = {}, {}
    for name in layers:
        layer = net.get_submodule(name)
        weight = layer.weight.data
        weight.mul_(torch.rand(len(weight), 1) + 0.1)
        if layer.bias is not None:
            layer.bias.data.normal_()
        masks[name] = pattern.mask(weight.abs(), sparsity)
        weight.mul_(masks[name])
        formats[name] = store(weight, masks[name], pattern.storage(tuple(weight.shape), sparsity))
    return formats, masks


@pytest.fixture
def prune_layers() -> Callable[..., tuple[dict, dict]]:
    """prune_layers(net, layers, pattern) -> formats and masks."""
    return prune


def text(batch: int, length: int, padded: bool) -> dict[str, Tensor]:
    """Tokens; where padded, rows end earlier and earlier."""
    tokens = {"input_ids": torch.randint(0, 8000, (batch, length))}
    if padded:
        lengths = torch.arange(length, length - batch, -1).clamp(min=1)
        tokens["attention_mask"] = (torch.arange(length) < lengths[:, None]).long()
    return tokens


@pytest.fixture
def bert() -> Callable[..., Pruned]:
    """bert(pattern) -> a tiny BERT (post-norm, GELU), measured with padding.

    Its classes are many: two logits of random weights may both be close to zero, where their relative error says nothing.
    """

    def make(pattern: Pattern, sparsity: float = 0.5) -> Pruned:
        settings = Bert(size="tiny")
        net = settings.build(DataInfo("sequence_classification", 64, sequence_length=16)).eval()
        inputs = [text(3, 16, True), text(2, 11, True), text(4, 7, False), text(1, 9, True), text(1, 5, False)]
        return Pruned(net, *prune(net, settings.prunable(net), pattern, sparsity), inputs)

    return make


@pytest.fixture
def vit() -> Callable[..., Pruned]:
    """vit(pattern) -> a small pre-norm ViT."""

    def make(pattern: Pattern, sparsity: float = 0.5) -> Pruned:
        settings = VitSmall(dim=64, depth=2)
        net = settings.build(DataInfo("image_classification", 10, 20, 3)).eval()
        inputs = [{"x": torch.randn(batch, 3, 20, 20)} for batch in (3, 1, 5)]
        return Pruned(net, *prune(net, settings.prunable(net), pattern, sparsity), inputs)

    return make


class Stack(nn.Module):
    """Blocks one after the other."""

    def __init__(self, blocks: Iterable[nn.Module]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


@pytest.fixture
def stack() -> Callable[..., Pruned]:
    """stack(blocks, pattern) -> a network of these blocks of width 32, every Linear pruned."""

    def make(blocks: Iterable[nn.Module], pattern: Pattern, sparsity: float = 0.5) -> Pruned:
        net = Stack(blocks).eval()
        layers = [name for name, module in net.named_modules() if isinstance(module, nn.Linear)]
        formats, masks = prune(net, layers, pattern, sparsity)
        return Pruned(net, formats, masks, [{"x": torch.randn(*sizes, 32)} for sizes in ((3, 6), (1, 4), (2, 9))])

    return make


class Clock:
    """Stands in for the GPU: products by kernel, blocks by what they are."""

    def __init__(self):
        self.products_us = {"gathered_reference": 10.0, "dense_linear": 20.0}
        self.blocks_ms = {"feature_major": 1.0, "row_major": 2.0, "row_major, compiled": 2.0}
        self.blocks_ms |= {"plain": 3.0, "plain, q k v in one": 3.0, "original code": 3.0}
        self.timed_products, self.timed_blocks = [], []
        # kernel -> what it says when it is timed; relative error of the launch that it has then
        self.failures, self.errors = {}, {}

    def product(self, product, *operands, at_most_us, launches, check):
        self.timed_products.append((product.kernel_name, product.layout, tuple(x.shape for x in operands)))
        if product.kernel_name in self.failures:
            raise RuntimeError(self.failures[product.kernel_name])
        return KernelTime(self.products_us[product.kernel_name], relative_error=self.errors.get(product.kernel_name))

    def block(self, block, call, *, feature_major=False):
        kind = "plain"
        if isinstance(block, FusedBlock):
            assert block.feature_major == feature_major
            kind = "feature_major" if feature_major else "row_major"
            kind += "_attention" * block.has_own_attention + "_in_chunks" * (block.hidden_bytes is not None)
        elif any(isinstance(part, OriginalCode) for part in block.modules()):
            kind = "original code"
        elif any(isinstance(part, FusedBlock) for part in block.modules()):
            kind = f"row_major{'_attention' * block.block.has_own_attention}, compiled"
        elif any(isinstance(part, FusedPart) for part in block.modules()):
            kind = "plain, q k v in one"
        self.timed_blocks.append(kind)
        return self.blocks_ms[kind]


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(ProductChooser, "times_on", lambda self, device: True)
    monkeypatch.setattr(product_choice, "time_layer", clock.product)
    monkeypatch.setattr(block_times, "block_time_ms", clock.block)
    return clock


@pytest.fixture
def nothing_tuned(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[[], None]]:
    """No measured launches but those that the test keeps; nothing_tuned() forgets what is not on disk, as a new process would."""

    def forget() -> None:
        tuning_store.tuned_kernel.cache_clear()
        forget_choices()

    monkeypatch.setenv("SPARSEFRONT_KERNELS_CACHE", str(tmp_path))
    monkeypatch.setattr(tuning_store, "SHIPPED", tmp_path / "shipped")
    forget()
    yield forget
    forget()
