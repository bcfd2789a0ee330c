"""Rewritten blocks compute what the masked ones do: every pattern, other batches and lengths, masks with padding."""

import copy
from dataclasses import replace

import pytest
import torch
from sparsefront_kernels import KernelEntry, entries
from torch import nn
from torch.nn import functional

from sparsefront.inference.choice import KernelChoice
from sparsefront.inference.fusion import fused_product, row_chunks
from sparsefront.inference.fusion.block_pass import fuse_blocks, fuse_dense
from sparsefront.inference.fusion.fused import FusedBlock
from sparsefront.inference.fusion.plan import FusionParts, FusionPlan
from sparsefront.inference.fusion.row_chunks import RowChunks
from sparsefront.inference.precision import Precision
from sparsefront.measure.correctness import output_error
from sparsefront.patterns.block_wise import BlockWise
from sparsefront.patterns.channel import Channel
from sparsefront.patterns.element_wise import ElementWise
from sparsefront.patterns.n_m import NM
from sparsefront.patterns.tile_wise import TileWise
from sparsefront.patterns.vector_wise import VectorWise

PATTERNS = {
    "tile_wise": TileWise(32),
    "vector_wise": VectorWise(8),
    "block_wise": BlockWise(16),
    "n_m": NM(2, 4),
    "element_wise": ElementWise(),
    "tew": TileWise(32, element_overlay=0.05),
    "channel": Channel(),
}
CHOICE = KernelChoice()


def fused(pruned, choice=CHOICE, **options):
    net = copy.deepcopy(pruned.net)
    return net, fuse_blocks(net, pruned.formats, pruned.masks, pruned.inputs[0], choice, **options)


@torch.inference_mode()
def worst_error(net, pruned):
    return max(output_error(net(**inputs), pruned.net(**inputs)) for inputs in pruned.inputs)


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("model", ["bert", "vit"])
def test_fused_network_is_the_masked_one(model, pattern, request):
    pruned = request.getfixturevalue(model)(PATTERNS[pattern])
    net, report = fused(pruned)
    assert not report.unsupported and len(report.blocks) == 2
    assert worst_error(net, pruned) < 1e-5
    for block in report.blocks.values():
        assert block.layout == "feature_major" and block.norms == 2 and block.relative_error < 2e-6
        joined, *others = block.products if len(block.products) == 4 else [None, *block.products]
        if joined is not None:
            assert len(joined.layers) == 3 and joined.layout == "feature_to_row" and joined.n == 3 * joined.k
        out, up, down = others[-3:]
        assert out.layout == "row_to_feature"
        assert up.activation == "gelu" and not up.residual and (up.layout, down.layout) == ("feature_major",) * 2
        assert down.activation == "none"
        assert out.residual + down.residual + block.residual_norms == 2
        assert all(
            layer.startswith(("bert.encoder.layer.", "blocks."))
            for product in block.products
            for layer in product.layers
        )


def test_hidden_features_that_are_pruned_vanish(bert):
    pruned = bert(TileWise(32), 0.75)
    net, report = fused(pruned)
    for block in report.blocks.values():
        up, down = block.products[-2:]
        alive = int(pruned.masks[up.layers[0]].any(1).sum())
        assert up.n == down.k == -(-alive // 16) * 16 < 512
        assert up.vanished_outputs == down.vanished_inputs == 512 - up.n
    assert worst_error(net, pruned) < 1e-5


@pytest.mark.parametrize("pattern", [TileWise(16), BlockWise(16)], ids=["tile_wise", "block_wise"])
@pytest.mark.parametrize("model", ["bert", "vit"])
def test_weightless_values_behind_attention(model, pattern, request):
    torch.manual_seed(0)  # few other weights leave every block of values something
    pruned = request.getfixturevalue(model)(pattern, 0.75)
    net, report = fused(pruned)
    blocks = [module for module in net.modules() if isinstance(module, FusedBlock)]
    for name, block in zip(report.blocks, blocks, strict=True):
        (layer,) = next(
            layers for layers in block.product_of if layers[0].endswith(("attention.output.dense", "attn.out"))
        )
        value = pruned.masks[f"{name}.{layer}".replace("output.dense", "self.value").replace("attn.out", "attn.v")]
        dense = block.product_of[layer,].format.to_dense()
        constant = ~value.any(1)
        assert constant.any() and not dense[:, constant].any()
        before, read = pruned.formats[f"{name}.{layer}"].to_dense(), block.product_of[layer,].format.values.numel()
        # blocks that the mask had pruned there already leave nothing to drop
        assert (read < before.count_nonzero()) == bool(before[:, constant].any())
    assert worst_error(net, pruned) < 1e-5


class Mixes(nn.Module):
    """Looks like attention's surroundings, but what lies between the value and its reader is no average over tokens."""

    def __init__(self, between):
        super().__init__()
        self.value, self.out, self.between = nn.Linear(32, 32), nn.Linear(32, 32), between

    def forward(self, x):
        heads = self.value(x).unflatten(-1, (4, 8)).transpose(1, 2)
        return x + self.out(self.between(heads).transpose(1, 2).flatten(2))


@pytest.mark.parametrize(
    ("between", "passes"),
    [
        (lambda heads: heads.softmax(-2), False),
        (lambda heads: heads.cumsum(-2), False),
        (lambda heads: heads.flip(-1), False),
        (lambda heads: heads - heads.mean(1, keepdim=True), False),
        (lambda heads: heads.mean(-2, keepdim=True).expand(heads.shape), True),
    ],
)
def test_only_averages_over_tokens_pass_constants(between, passes, stack):
    pruned = stack([Mixes(between)], TileWise(8), 0.75)
    net, report = fused(pruned)
    out = report.blocks["blocks.0"].products[1]
    assert (out.vanished_inputs > 0) == passes and out.k == 32
    assert worst_error(net, pruned) < 1e-5


def test_copies_and_casts(bert):
    pruned = bert(TileWise(32))
    net, _ = fused(pruned)
    copied = copy.deepcopy(net)
    with torch.inference_mode():
        assert output_error(copied(**pruned.inputs[0]), net(**pruned.inputs[0])) == 0
    assert not {id(part) for part in net.modules()} & {id(part) for part in copied.modules()}
    del net
    assert worst_error(copied.double(), doubled(pruned)) < 1e-6  # weights were float32
    assert all(product.format.dtype == torch.float64 for product in copied.bert.encoder.layer[0].products)


def doubled(pruned):
    return type(pruned)(copy.deepcopy(pruned.net).double(), pruned.formats, pruned.masks, pruned.inputs)


def test_a_plan_does_the_same_again(bert, tmp_path, monkeypatch):
    pruned = bert(TileWise(32))
    first, report = fused(pruned)
    report.plan.save(tmp_path / "plan.json")
    plan = FusionPlan.load(tmp_path / "plan.json")
    assert plan == report.plan
    asked = lambda *_: pytest.fail("no other kernel is tried")  # noqa: E731
    other = KernelEntry(name="other", family="gathered", product=None, is_reference=True, unsupported=asked)
    monkeypatch.setattr(fused_product, "entries", lambda: [*entries(), other])
    again, second = fused(pruned, plan=plan)
    assert second.plan == plan
    with torch.inference_mode():
        assert output_error(again(**pruned.inputs[0]), first(**pruned.inputs[0])) == 0


@pytest.mark.parametrize(
    ("model", "layout", "precision"),
    [
        ("bert", "feature_major", "none"),
        ("bert", "row_major", "none"),
        ("bert", "row_major", "fp8"),
        ("vit", "feature_major", "none"),
        ("gated", "row_major", "none"),
    ],
)
def test_hidden_features_in_chunks(model, layout, precision, request, monkeypatch):
    """Of eight rows; the last chunk has fewer, a batch of one row a single one."""
    monkeypatch.setattr(row_chunks, "ROWS", 8)
    pattern = BlockWise("64x128") if precision == "fp8" else TileWise(8)
    if model == "gated":
        pruned = request.getfixturevalue("stack")([Gated(), Gated()], pattern)
    else:
        pruned = request.getfixturevalue(model)(pattern)
    options = {"parts": FusionParts(layouts=(layout,)), "precision": Precision(precision)}
    whole, report = fused(pruned, **options)
    plan = replace(report.plan, blocks={name: replace(one, hidden_bytes=1) for name, one in report.plan.blocks.items()})
    net, second = fused(pruned, plan=plan, **options)
    assert second.plan == plan and all("by 1 bytes" in line for line in second.summary())
    assert [part.rows for part in net.modules() if isinstance(part, RowChunks)] == [8, 8]
    with torch.inference_mode():
        for inputs in pruned.inputs:
            assert output_error(net(**inputs), whole(**inputs)) < 1e-6
    block = next(part for part in net.modules() if isinstance(part, FusedBlock))
    calls, x = [], torch.randn(3, 7, block.products[0].in_features)
    block.products[-1].register_forward_hook(lambda product, args, y: calls.append(y.shape))
    with torch.inference_mode():
        expected = block(x)
        assert calls == [(8, x.shape[-1])] * 2 + [(5, x.shape[-1])]
        if precision == "fp8":  # other references are slow to trace
            assert output_error(torch.compile(block, backend="aot_eager", fullgraph=True)(x), expected) < 1e-6


class Summed(nn.Module):
    """A sum between two Linears, or after them the hidden features themselves."""

    def __init__(self, *, before):
        super().__init__()
        self.before, self.norm, self.up, self.down = before, nn.LayerNorm(32), nn.Linear(32, 32), nn.Linear(32, 32)

    def forward(self, x):
        y = self.up(self.norm(x))
        return self.down(x + y) if self.before else self.down(y) + y


@pytest.mark.parametrize("layout", ["feature_major", "row_major"])
@pytest.mark.parametrize("before", [True, False])
def test_sums_beside_chunks(before, layout, stack, monkeypatch):
    monkeypatch.setattr(row_chunks, "ROWS", 8)
    pruned = stack([Summed(before=before), Summed(before=before)], TileWise(8))
    plan = fuse_dense(copy.deepcopy(pruned.net), pruned.inputs[0], layout=layout).plan
    plan = replace(plan, blocks={name: replace(one, hidden_bytes=1) for name, one in plan.blocks.items()})
    net = copy.deepcopy(pruned.net)
    fuse_dense(net, pruned.inputs[0], plan=plan)
    assert sum(isinstance(part, RowChunks) for part in net.modules()) == 2 * before
    assert worst_error(net, pruned) < 1e-5


@pytest.mark.parametrize("layout", [None, "feature_major", "row_major"])
def test_fused_dense(layout, bert):
    pruned = bert(TileWise(32))
    net = copy.deepcopy(pruned.net)
    report = fuse_dense(net, pruned.inputs[0], layout=layout)
    kernels = {product.kernel for block in report.blocks.values() for product in block.products}
    assert kernels == {"dense_linear"} and report.layout == (layout or "feature_major")
    assert worst_error(net, pruned) < 1e-5


@pytest.mark.skipif(torch.cuda.is_available(), reason="Triton's interpreter is for machines without a GPU")
def test_kernels_in_four_layouts(bert):
    """Through the Triton kernel, in the interpreter; a block is one graph, whatever its strides."""
    pruned = bert(TileWise(32))
    net, report = fused(pruned, KernelChoice("sparse", name="gathered_triton"))
    kernels = {product.kernel for block in report.blocks.values() for product in block.products}
    assert kernels == {f"gathered_triton_{way}" for way in ("feature_to_row", "row_to_feature", "feature_major")}
    pruned.inputs = pruned.inputs[:1]
    assert worst_error(net, pruned) < 1e-5
    hidden = torch.randn(3, 5, 128)
    block = net.bert.encoder.layer[0]
    compiled = torch.compile(block, backend="aot_eager", fullgraph=True)
    with torch.inference_mode():
        expected = block(hidden)  # a kind of call without a mask: captured here, outside of the compiler
        assert output_error(compiled(hidden), expected) < 1e-6


class Perceptron(nn.Module):
    """A block without attention; `order` says how the residual is added."""

    def __init__(self, order="residual first", activation=functional.relu, hidden=48, norm=True, bias=True):
        super().__init__()
        self.order, self.activation = order, activation
        self.norm = nn.LayerNorm(32) if norm else nn.Identity()
        self.up, self.down = nn.Linear(32, hidden, bias=bias), nn.Linear(hidden, 32, bias=bias)

    def forward(self, x):
        y = self.down(self.activation(self.up(self.norm(x))))
        if self.order == "in place":
            y += x
            return y
        if self.order == "post-norm":
            return self.norm(x + y)
        return x + y if self.order == "residual first" else y + x


@pytest.mark.parametrize(
    ("order", "activation", "bias"),
    [
        ("residual first", functional.relu, True),
        ("residual last", functional.gelu, True),
        ("in place", torch.tanh, True),
        ("in place", functional.gelu, False),
        ("residual last", torch.tanh, False),
    ],
)
def test_orders_of_the_residual(order, activation, bias, stack):
    pruned = stack([Perceptron(order, activation, bias=bias) for _ in range(2)], TileWise(8), 0.7)
    net, report = fused(pruned)
    assert not report.unsupported
    for block in report.blocks.values():
        up, down = block.products
        assert down.residual and up.activation == ("none" if activation is torch.tanh else activation.__name__)
        assert (up.vanished_outputs > 0) == (
            activation is not torch.tanh
        )  # tanh is not fused, so up's reader is no product
    assert worst_error(net, pruned) < 1e-5


class Gated(nn.Module):
    """Two Linears that read the same, one behind an activation, as in GEGLU."""

    def __init__(self):
        super().__init__()
        self.gate, self.up, self.down = nn.Linear(32, 48), nn.Linear(32, 48), nn.Linear(48, 32)

    def forward(self, x):
        return self.down(functional.gelu(self.gate(x)) * self.up(x)) + x


class Scaled(nn.Module):
    """Parameters of its own, two outputs, an argument by keyword with a default."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(32, 32), nn.Linear(32, 32)
        self.scale = nn.Parameter(torch.rand(32))
        self.register_buffer("shift", torch.rand(32))

    def forward(self, x, twice: bool = False):
        y = self.second(self.first(x)) * self.scale + self.shift
        return (x + y * 2 if twice else x + y), y.mean(-1)


class DropsAToken(Scaled):
    def forward(self, x):
        return self.second(self.first(x)[:, 1:])


def test_products_of_different_rows_stay_whole(stack):
    pruned = stack([DropsAToken(), DropsAToken()], TileWise(8))
    _, report = fused(pruned)
    plan = replace(report.plan, blocks={name: replace(one, hidden_bytes=1) for name, one in report.plan.blocks.items()})
    net, _ = fused(pruned, plan=plan)
    assert len(report.rewritten) == 2 and not any(isinstance(part, RowChunks) for part in net.modules())
    assert worst_error(net, pruned) < 1e-5


def test_gated_blocks_with_own_parameters(stack):
    pruned = stack([Gated(), Gated()], TileWise(8))
    net, report = fused(pruned)
    assert not report.unsupported and worst_error(net, pruned) < 1e-5
    block = Scaled().eval()
    holder = nn.Sequential(block)
    copied = copy.deepcopy(holder)
    assert not fuse_dense(copied, {"input": torch.randn(2, 5, 32)}).unsupported
    x = torch.randn(4, 3, 32)
    with torch.no_grad():
        for call in ({}, {"twice": True}):  # the second is captured when it comes
            ours, theirs = copied[0](x, **call), block(x, **call)
            assert type(ours) is tuple and output_error(ours, theirs) < 2e-6


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(32, 32), nn.Linear(32, 32)

    def forward(self, x):
        return self.second(self.first(self.first(x)))


class LooksAtValues(Twice):
    def forward(self, x):
        return self.second(self.first(x)) if x.sum() > 0 else x


class WritesInPlace(Twice):
    def forward(self, x):
        x.mul_(2)  # what it is given
        return self.second(self.first(x))


class HoldsATensor(Twice):
    def forward(self, x):
        return self.second(self.first(x)) + torch.tensor([2.0, 3.0]).sum()


@pytest.mark.parametrize(
    ("kind", "why"),
    [(Twice, "twice"), (LooksAtValues, "cannot be exported"), (WritesInPlace, "in place"), (HoldsATensor, "constant")],
)
def test_blocks_that_cannot_be_rewritten_stay(kind, why, stack):
    pruned = stack([kind(), kind()], TileWise(8))
    net, report = fused(pruned)
    assert not report.blocks and all(why in reason for reason in report.unsupported.values()), report.unsupported
    assert len(report.unsupported) == 2 and type(net.blocks[0]) is kind
    assert list(report.summary().values()) == [2]


def test_gradients_reach_the_input(vit):
    pruned = vit(TileWise(32))
    net = copy.deepcopy(pruned.net)
    fuse_dense(net, pruned.inputs[0])
    gradients = []
    for one in (net, pruned.net):
        x = pruned.inputs[0]["x"].clone().requires_grad_()
        one(x=x).square().sum().backward()
        gradients.append(x.grad)
    assert output_error(*gradients) < 1e-4
