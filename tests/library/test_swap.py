"""swap and benchmark: the same outputs by other kernels, and what they say of it."""

import copy

import pytest
import torch
from torch import nn

import sparsefront as sf

IMAGES = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def pruned(net, **arguments):
    return sf.prune(net, **{"pattern": "tile_wise", "sparsity": 0.5, "granularity": 4, "tell": len} | arguments)


def test_report_says_what_runs(cnn):
    masks = pruned(cnn, example_inputs=(IMAGES,))
    with torch.no_grad():
        expected = cnn(IMAGES)
    report = sf.swap(cnn, masks, example_inputs=(IMAGES,))
    with torch.no_grad():
        torch.testing.assert_close(cnn(IMAGES), expected, rtol=1e-4, atol=1e-5)
    assert type(cnn.mlp).__name__ == "SparseLinear" and type(cnn.body).__name__ == "SparseConv2d"
    lines = str(report).splitlines()
    assert lines[0].startswith("2 of 5 layers run a sparse kernel (")
    assert [line.split() for line in lines[1:3]] == [
        [name, "gathered_reference,", "keeps", f"{masks[name].float().mean():.1%}"] for name in ("body", "mlp")
    ]
    assert any(line.split()[:2] == ["stem", "dense:"] and "first convolution" in line for line in lines)
    assert any("unused" in line and "do not reach" in line for line in lines)


@pytest.mark.parametrize(
    ("kernel", "expected"),
    [("sparse", "gathered_reference"), ("reference", "gathered_reference"), ("csr", "csr_reference")]
    + [("csr_reference", "csr_reference"), ("none", "dense_linear")]
    + [(sf.KernelChoice("sparse", family="csr"), "csr_reference")],
)
def test_choice_of_kernels(cnn, kernel, expected):
    report = sf.swap(cnn, pruned(cnn, layers="mlp"), (IMAGES,), kernel=kernel)
    assert report.layers["mlp"].kernel == expected


QUICK = {"warmup": 0, "samples": 5, "repeats": 2, "autotune_seconds": 0.0}


def test_comparison_on_a_cpu(cnn):
    dense = copy.deepcopy(cnn)
    sf.swap(cnn, pruned(cnn), (IMAGES,))
    comparison = sf.benchmark(dense, cnn, (IMAGES,), settings=sf.Measure(**QUICK | {"repeats": 5}))
    low, high = comparison.interval
    assert 0 < low <= comparison.speedup <= high and comparison.dense_ms > 0 and comparison.sparse_ms > 0
    assert comparison.device == "cpu" and [len(repeat) for repeat in comparison.timed.samples_ms["sparse"]] == [5] * 5
    text = str(comparison)
    assert "95 % interval" in text and "p20" in text and "on a CPU the reference kernels run" in text
    assert "cuda_graph" in "".join(comparison.timed.not_timed), "the execution modes were searched"
    few = sf.benchmark(dense, cnn, (IMAGES,), settings=sf.Measure(**QUICK))
    assert "(n=2: no interval)" in str(few) and "95 %" not in str(few)


class Scales(nn.Module):
    """As LayerScale: what a block adds is multiplied by a factor of its own for each feature."""

    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(16), nn.Linear(16, 32), nn.Linear(32, 16)
        self.scale = nn.Parameter(torch.linspace(-2.0, 3.0, 16))

    def forward(self, x):
        return x + self.scale * self.down(self.up(self.norm(x)).relu())


@pytest.mark.parametrize("pattern", [sf.patterns.TileWise(8), "n_m", "element_wise"])
def test_factors_go_into_the_weights(pattern):
    net, x = nn.Sequential(Scales(), Scales()).eval(), torch.randn(2, 5, 16)
    masks, weight = sf.prune(net, pattern, 0.5, layers="*", tell=len), net[0].down.weight
    expected, before = net(x), weight.detach().clone()
    report = sf.swap(net, masks, x)
    assert report.sparse_layer_share == 1 and "residual" in str(report) and torch.equal(weight, before)
    torch.testing.assert_close(net(x), expected, rtol=1e-4, atol=1e-5)


def test_network_without_comparable_outputs():
    class Classes(nn.Sequential):
        def forward(self, x):
            return super().forward(x).argmax(-1)

    net, x = Classes(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8)).eval(), torch.randn(4, 8)
    masks = pruned(net, layers=["0"])
    with pytest.raises(sf.InvalidSetting, match="net=Tensor: must return a floating-point tensor"):
        sf.swap(net, masks, x)
    assert type(net[0]) is nn.Linear, "found before anything is swapped"
    with pytest.raises(sf.InvalidSetting, match="net=Tensor: must return a floating-point tensor"):
        sf.benchmark(net, copy.deepcopy(net), x)
