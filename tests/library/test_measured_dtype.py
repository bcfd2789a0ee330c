"""Networks of several dtypes are measured in that of their products."""

import copy
import importlib

import pytest
import torch
from torch import nn

import sparsefront as sf
from sparsefront.inference.benchmark import find_dtype

benchmark = importlib.import_module("sparsefront.inference.benchmark")  # the package has a function of that name
QUICK = {"warmup": 1, "samples": 5, "repeats": 1, "execution_modes": ["eager"], "variants": []}


class Normed(nn.Module):
    """Its norm, which comes first, stays float32."""

    def __init__(self, dtype=torch.bfloat16):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(32), nn.Linear(32, 64, bias=False), nn.Linear(64, 32, bias=False)
        self.up.to(dtype), self.down.to(dtype)

    def forward(self, x):
        return self.down(torch.relu(self.up(self.norm(x.float()).to(x.dtype))))


def plain() -> nn.Module:
    return nn.Sequential(nn.Linear(32, 64, bias=False), nn.ReLU(), nn.Linear(64, 32, bias=False)).bfloat16()


def test_coarsest_dtype_of_the_weights():
    assert find_dtype(Normed()) == "bf16" and find_dtype(Normed(torch.float16)) == "fp16"
    assert find_dtype(nn.Linear(4, 4)) == find_dtype(nn.ReLU()) == "fp32"
    with pytest.raises(sf.InvalidSetting, match="net=torch.float64: is timed in fp32, fp16, bf16"):
        find_dtype(nn.Linear(4, 4).double())


@pytest.mark.parametrize("build", [Normed, plain])
def test_swapped_networks_in_their_dtype(build, monkeypatch):
    """Sparse weights are no parameters: one of the two networks has none but its norm's, the other none at all."""
    dense, x = build(), torch.randn(8, 32).bfloat16()
    net = copy.deepcopy(dense)
    layers = [name for name, module in net.named_modules() if isinstance(module, nn.Linear)]
    sf.swap(net, sf.prune(net, "n_m", 0.5, layers=layers, tell=len), x)
    assert torch.bfloat16 not in {parameter.dtype for parameter in net.parameters()}
    measured_in, time_pair = [], benchmark.time_pair

    def noted(dense, sparse, inputs, settings, **more):
        measured_in.append(settings.torch_dtype)
        return time_pair(dense, sparse, inputs, settings, **more)

    monkeypatch.setattr(benchmark, "time_pair", noted)
    assert sf.benchmark(dense, net, x, settings=sf.Measure(**QUICK), fuse=None).sparse_ms > 0
    assert measured_in == [torch.bfloat16]
