"""Variants of a network: the same outputs, the network itself unchanged, or the reason why there is none."""

import copy

import pytest
import torch
from sparsefront_kernels import FORMATS, KernelEntry, entry
from sparsefront_kernels.problem import Convolving
from torch import nn
from torchvision.models import VisionTransformer

from sparsefront.data.base import DataInfo
from sparsefront.inference.network_modules import SparseConv2d
from sparsefront.masks.weight_view import as_matrix, like_weight
from sparsefront.measure.execution_mode import fastest_execution_mode
from sparsefront.measure.variants import (
    DoesNotApply,
    FusedPart,
    PatchProduct,
    fold_batch_norm,
    fuse_convolutions,
    fuse_linears,
    group_linears,
    make_variant,
    patch_products,
)
from sparsefront.models.attention import SelfAttention
from sparsefront.models.bert import Bert
from sparsefront.models.vit_small import VitSmall

IMAGES = DataInfo("image_classification", 10, 32, 3)
PLAIN = entry("csr_reference")


def sparse(layer, kernel=PLAIN):
    mask = torch.rand(as_matrix(layer.weight).shape) < 0.6
    stored = FORMATS["csr"].from_dense(as_matrix(layer.weight.detach()) * mask, mask)
    return SparseConv2d(kernel, stored, layer)


class Convolutions(nn.Module):
    """A dense and a sparse convolution with statistics and parameters that are not those of a new network."""

    def __init__(self, bias=False, affine=True):
        super().__init__()
        self.first, self.first_norm = nn.Conv2d(3, 8, 3, bias=bias, padding=1), nn.BatchNorm2d(8, affine=affine)
        self.second, self.second_norm = sparse(nn.Conv2d(8, 8, 1, bias=bias)), nn.BatchNorm2d(8, affine=affine)
        for norm in (self.first_norm, self.second_norm):
            norm.running_mean.normal_(), norm.running_var.uniform_(0.5, 2)
            for parameter in norm.parameters():
                nn.init.normal_(parameter)

    def forward(self, x):
        y = self.first_norm(self.first(x)).relu()
        return (self.second_norm(self.second(y)) + y).relu()


class Encoder(nn.Module):
    def __init__(self, bias=True):
        super().__init__()
        self.blocks = nn.ModuleList(SelfAttention(16, 2, bias=bias) for _ in range(2))

    def forward(self, x):
        for block in self.blocks:
            x = x + block(x)
        return x


def reading_kernel():
    """A kernel that reads images by plain PyTorch, and the list of its calls."""
    calls = []

    def run(images, stored, bias, convolution, *, activation="none", residual=None, relu_last=False):
        calls.append((activation, residual is not None, relu_last))
        assert images.is_contiguous() and (residual is None or residual.is_contiguous())
        shape = (len(stored.to_dense()), images.shape[3], *convolution.kernel_size)
        weight = like_weight(stored.to_dense(), torch.empty(shape))
        settings = {"stride": convolution.stride, "padding": convolution.padding, "dilation": convolution.dilation}
        y = nn.functional.conv2d(images.permute(0, 3, 1, 2), weight, bias, **settings).permute(0, 2, 3, 1)
        y = y.relu() if activation == "relu" else y
        y = y if residual is None else y + residual
        return (y.relu() if relu_last else y).contiguous()

    reads = Convolving(run, lambda packed, images, convolution: "takes more channels" if images.shape[3] < 4 else None)
    return KernelEntry(name="reads", family="csr", product=PLAIN.run, pack=PLAIN.pack, convolving=reads), calls


class Bottleneck(nn.Module):
    """As torchvision's: the shortcut is computed after the last convolution."""

    def __init__(self):
        super().__init__()
        kernel, self.calls = reading_kernel()
        self.one = sparse(nn.Conv2d(8, 4, 1), kernel)
        self.two = sparse(nn.Conv2d(4, 4, 3, stride=2, padding=1), kernel)
        self.three = sparse(nn.Conv2d(4, 8, 1), kernel)
        self.norm = nn.Identity()
        self.shortcut = sparse(nn.Conv2d(8, 8, 1, stride=2, bias=False), kernel)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x):
        y = self.relu(self.one(x))
        y = torch.relu(self.two(y))
        y = self.norm(self.three(y))
        y += self.shortcut(x)
        return self.relu(y)


def count(net, kind):
    return sum(isinstance(module, kind) for module in net.modules())


CONTRACT = {  # name -> variant, network, sizes of its input, what the variant has
    "dense and sparse batch norm": (
        *("folded_batch_norm", Convolutions, (2, 3, 9, 9)),
        lambda net: count(net, nn.BatchNorm2d) == 0 and isinstance(net.second, SparseConv2d),
    ),
    "batch norm with bias": ("folded_batch_norm", lambda: Convolutions(bias=True), (2, 3, 9, 9), lambda net: True),
    "plain batch norm": ("folded_batch_norm", lambda: Convolutions(affine=False), (2, 3, 9, 9), lambda net: True),
    "bottleneck": ("fused_epilogue", Bottleneck, (2, 8, 9, 7), lambda net: net.one.relu and net.three.relu),
    "attention": ("fused_qkv", Encoder, (3, 5, 16), lambda net: count(net, FusedPart) == 6),
    "attention without bias": ("fused_qkv", lambda: Encoder(bias=False), (3, 5, 16), lambda net: True),
    "patches of a ViT": (
        *("patch_product", lambda: VisionTransformer(32, 8, 1, 2, 16, 32), (2, 3, 32, 32)),
        lambda net: isinstance(net.conv_proj, PatchProduct) and count(net, nn.Conv2d) == 0,
    ),
    "channels last": (
        *("channels_last", lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3)), (2, 3, 12, 12)),
        lambda net: net[2].weight.is_contiguous(memory_format=torch.channels_last),
    ),
}


@pytest.mark.parametrize("name", CONTRACT)
def test_variant_computes_the_same(name):
    variant, make, sizes, has = CONTRACT[name]
    net, x = make().eval(), torch.randn(*sizes)
    before, modules, strides = str(net), [*net.modules()], [one.stride() for one in net.parameters()]
    weights = copy.deepcopy(net.state_dict())
    with torch.no_grad():
        expected = net(x)
        argument = "input" if isinstance(net, nn.Sequential) else "x"
        varied = make_variant(variant, net, {argument: x})
        torch.testing.assert_close(varied(x), expected, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(net(x), expected, rtol=0, atol=0)
    assert has(varied) and not varied.training
    assert str(net) == before and all(one is other for one, other in zip(net.modules(), modules, strict=True))
    assert [one.stride() for one in net.parameters()] == strides
    assert all(torch.equal(value, weights[key]) for key, value in net.state_dict().items())


LINEAR, IMAGE = nn.Sequential(nn.Linear(16, 16)), torch.randn(1, 3, 8, 8)
WITHOUT = {  # variant -> network that it does not apply to, why
    "folded_batch_norm": (nn.Sequential(nn.Conv2d(3, 8, 3)), "has no BatchNorm2d"),
    "fused_epilogue": (nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU()), "no sparse convolution.*; no activation module"),
    "patch_product": (nn.Conv2d(3, 3, 3), "cuts its image into patches"),
    "fused_qkv": (nn.Conv2d(3, 3, 3), "no two Linear layers"),
    "channels_last": (LINEAR, "fewer than two convolutions"),
    "fused_graph": (LINEAR, "no fused graph"),
    "sdpa_flash": (LINEAR, "^needs a CUDA device$"),
}


@pytest.mark.parametrize("variant", WITHOUT)
def test_variant_that_does_not_apply(variant):
    net, reason = WITHOUT[variant]
    with pytest.raises(DoesNotApply, match=reason):
        make_variant(variant, net.eval(), {"input": IMAGE})


class ReadTwice(Convolutions):
    def forward(self, x):
        y = self.first(x)
        return self.first_norm(y) + y


class CalledTwice(Convolutions):
    def forward(self, x):
        y = self.first_norm(self.first(x)).relu()
        return self.second_norm(self.second(self.second_norm(self.second(y))))


class Undecided(Convolutions):
    def forward(self, x):
        return self.first_norm(self.first(x)) if x.sum() > 0 else x


def test_batch_norm_that_cannot_fold():
    x, called_twice = torch.randn(2, 3, 9, 9), CalledTwice().eval()
    with pytest.raises(DoesNotApply, match="no BatchNorm2d alone reads a convolution"):
        fold_batch_norm(ReadTwice().eval())
    folded = fold_batch_norm(called_twice)
    assert count(folded, nn.BatchNorm2d) == 1
    torch.testing.assert_close(folded(x), called_twice(x))
    with pytest.raises(DoesNotApply, match="its forward cannot be traced"):
        fold_batch_norm(Undecided().eval())


STORED = {
    "csr": ({}, lambda n, k: torch.rand(n, k) < 0.4),
    "n_m": ({"n": 2, "m": 4}, lambda n, k: (torch.rand(n, k // 4, 4).argsort(-1) < 2).view(n, k)),
    "semi_structured": ({}, lambda n, k: (torch.rand(n, k // 4, 4).argsort(-1) < 2).view(n, k)),
    "ell": ({"block": 1}, lambda n, k: torch.rand(n, k).argsort(-1) < 5),
    "blocked": (
        {"block": (8, 4)},
        lambda n, k: (torch.rand(n // 8, k // 4) < 0.5).repeat_interleave(8, 0).repeat_interleave(4, 1),
    ),
    "gathered": ({"tile": 8}, lambda n, k: (torch.rand(n // 8, k) < 0.5).repeat_interleave(8, 0)),
}


@pytest.mark.parametrize("family", STORED)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_every_format_is_scaled_by_outputs(family, dtype):
    parameters, draw = STORED[family]
    weight, mask, scale = torch.randn(16, 32, dtype=dtype), draw(16, 32), torch.randn(16)
    scaled = FORMATS[family].from_dense(weight * mask, mask, **parameters).scaled(scale)
    assert scaled.dtype == dtype
    assert torch.equal(scaled.to_dense(), ((weight * mask).float() * scale[:, None]).to(dtype))


class Mixed(nn.Module):
    """Convolutions that nothing can be fused into: read twice, followed by another function, or by a sum without ReLU."""

    def __init__(self):
        super().__init__()
        kernel, _ = reading_kernel()
        self.twice, self.other, self.summed = (sparse(nn.Conv2d(8, 8, 1), kernel) for _ in range(3))
        self.last = sparse(nn.Conv2d(8, 8, 3, padding=1), kernel)

    def forward(self, x):
        y = self.twice(x)
        y = y.relu() + y
        y = self.other(y).sigmoid()
        y = self.summed(y) + x
        return self.last(y).relu()


def test_only_direct_epilogues_are_fused():
    net, x = Mixed().eval(), torch.randn(1, 8, 6, 6)
    with torch.no_grad():
        fused = fuse_convolutions(net)
        torch.testing.assert_close(fused(x), net(x))
    assert [fused.get_submodule(name).relu for name in ("twice", "other", "summed", "last")] == [False] * 3 + [True]
    rows_only = nn.Sequential(sparse(nn.Conv2d(8, 8, 3)), nn.ReLU()).eval()
    with pytest.raises(DoesNotApply, match="followed by ReLU"):
        fuse_convolutions(rows_only)


def test_unreadable_images_are_multiplied_as_rows():
    """Then rows of pixels, a sum and ReLU follow each other."""
    kernel, calls = reading_kernel()
    layer = sparse(nn.Conv2d(3, 8, 3, padding=1), kernel)
    x, residual = torch.randn(1, 3, 6, 6), torch.randn(1, 8, 6, 6)
    with torch.no_grad():
        torch.testing.assert_close(layer.with_relu()(x, residual), (layer(x) + residual).relu())
    assert calls == []
    assert layer.copies_because(x) == "takes more channels"
    assert sparse(nn.Conv2d(8, 8, 3), kernel).copies_because(torch.randn(1, 8, 6, 6)) is None
    assert sparse(nn.Conv2d(8, 8, 1)).copies_because(x) is None
    assert sparse(nn.Conv2d(8, 8, 3)).copies_because(x) == "csr_reference reads rows"


NETWORKS = {
    "bert": (Bert(size="tiny"), DataInfo("sequence_classification", 2, sequence_length=16), "attention.self.query"),
    "vit_small": (VitSmall(dim=64, depth=2), IMAGES, "attn.q"),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_attentions_of_the_models_are_joined(name):
    model, info, query = NETWORKS[name]
    net = model.build(info).eval()
    inputs = {"x": torch.randn(2, 3, 32, 32)} if info.image_size else {"input_ids": torch.randint(0, 99, (2, 16))}
    groups = group_linears(net, **inputs)
    layers = [layer for layer in model.prunable(net) if layer.endswith(query)]
    assert [group[0] for group in groups] == layers and {len(group) for group in groups} == {3}


@pytest.mark.parametrize("kind", ["called twice", "hook", "subclass"])
def test_layers_that_do_more(kind):
    class Own(nn.Linear):
        pass

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two = nn.Linear(16, 4), (Own if kind == "subclass" else nn.Linear)(16, 4)
            if kind == "hook":
                self.two.register_forward_hook(lambda module, arguments, output: 2 * output)

        def forward(self, x):
            return self.one(x) + self.two(x) + (self.two(x) if kind == "called twice" else 0)

    assert fuse_linears(Net().eval(), x=torch.randn(3, 5, 16)) is None


@pytest.mark.gpu
def test_joined_linears_run_in_every_mode():
    device, dtype = torch.device("cuda"), torch.float16
    net = Encoder().eval().to(device, dtype)
    inputs = {"x": torch.randn(3, 5, 16, device=device, dtype=dtype)}
    modes = ["eager", "cuda_graph", "compile", "compile_cuda_graph"]
    fastest = fastest_execution_mode(
        fuse_linears(net, **inputs), inputs, execution_modes=modes, device=device, dtype=dtype, original=net
    )
    assert fastest.not_timed == {} and set(fastest.medians_ms) == set(modes)


@pytest.mark.parametrize(("size", "bias"), [((12, 12), True), ((14, 9), False)])
@pytest.mark.parametrize("kernel", [(4, 4), (2, 3), (4, 1)])
def test_patch_product_is_the_convolution(kernel, size, bias):
    """Also where the image has more pixels than its patches."""
    convolution, x = nn.Conv2d(3, 5, kernel, stride=kernel, bias=bias), torch.randn(2, 3, *size)
    y = PatchProduct(convolution)(input=x)
    torch.testing.assert_close(y, convolution(x))
    assert y.flatten(2).transpose(1, 2).is_contiguous(), "tokens are read without a copy"


@pytest.mark.parametrize(
    "options",
    [{"stride": 2}, {"stride": 4, "padding": 1}, {"stride": 4, "dilation": 2}, {"stride": 4, "groups": 3}],
    ids=str,
)
def test_other_convolutions_are_no_patches(options):
    with pytest.raises(DoesNotApply):
        patch_products(nn.Sequential(nn.Conv2d(3, 6, 4, **options), nn.Conv2d(6, 6, 1)))
