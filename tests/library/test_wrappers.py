"""Networks in wrappers, and inputs that are no tensors."""

import copy

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

import sparsefront as sf

TRAINER = sf.TrainerSettings(accelerator="cpu", checkpoint=False)
QUICK = sf.Measure(warmup=0, samples=5, repeats=2, autotune_seconds=0.0)
X, Y = torch.randn(8, 16, generator=torch.Generator().manual_seed(0)), torch.arange(8) % 4


class Cached(nn.Sequential):
    """As networks of transformers, whose forward has switches."""

    def forward(self, x, use_cache=True, scale=None):
        assert not use_cache
        return super().forward(x if scale is None else x * scale)


def network(kind=nn.Sequential) -> nn.Module:
    torch.manual_seed(0)
    return kind(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))


@pytest.fixture
def alone(tmp_path):
    """A group of this one process."""
    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


WRAPPERS = {
    "compiled": torch.compile,
    "DataParallel": nn.DataParallel,
    "DDP": nn.parallel.DistributedDataParallel,
    "compiled DDP": lambda net: torch.compile(nn.parallel.DistributedDataParallel(net)),
}


@pytest.mark.parametrize("wrap", WRAPPERS.values(), ids=WRAPPERS)
def test_wrapped_network_keeps_its_names(wrap, alone, tmp_path):
    net = network()
    dense, wrapped = wrap(copy.deepcopy(net)), wrap(net)
    masks = sf.prune(wrapped, "tile_wise", 0.5, granularity=4, tell=len)
    assert list(masks) == ["0", "2"] and not net[0].weight[~masks["0"]].any()
    masks = sf.recover(
        wrapped, masks, [(X, Y)], F.cross_entropy, recovery="distill", dense_net=dense, epochs=1, trainer=TRAINER
    )
    sf.save(tmp_path / "export", wrapped, masks)
    again = network()
    assert list(sf.load(tmp_path / "export", wrap(again))) == ["0", "2"]
    assert all(torch.equal(tensor, net.state_dict()[name]) for name, tensor in again.state_dict().items())
    report = sf.swap(wrapped, masks, (X,))
    assert list(report.layers) == ["0", "2"] and report.layers["0"].is_sparse and type(net[0]) is not nn.Linear
    assert sf.benchmark(dense, wrapped, (X,), settings=QUICK).dense_ms > 0


@pytest.mark.parametrize(
    "inputs",
    [{"use_cache": False, "x": X}, {"x": X, "use_cache": False, "scale": None}, (X, False)],
    ids=["by name", "None too", "in order"],
)
def test_inputs_may_hold_plain_values(inputs):
    net = network(Cached)
    dense = copy.deepcopy(net)
    masks = sf.prune(net, "tile_wise", 0.5, granularity=4, example_inputs=inputs, tell=len)
    assert list(masks) == ["0", "2"]
    assert sf.swap(net, masks, inputs).layers["0"].is_sparse
    assert sf.benchmark(dense, net, inputs, settings=QUICK).dense_ms > 0
