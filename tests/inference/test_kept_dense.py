"""Where a swapped network is slower as a whole, the masked one runs, and the record says so layer by layer."""

import torch
from torch import nn

from sparsefront.inference.choice import KernelChoice
from sparsefront.inference.swap import load_sparse, save_choices, swap_layers
from sparsefront.inference.whole_network import kept_dense, why_dense
from sparsefront.measure.problems import observe_problems
from sparsefront.patterns.tile_wise import TileWise

CPU = torch.device("cpu")


def test_two_per_cent_are_allowed():
    assert why_dense(1.02, 1.0) is None and why_dense(1.0, 1.0) is None and why_dense(0.5, 1.0) is None
    assert why_dense(1.03, 1.0) == "the whole network takes 1.030 ms with kernels, 1.000 ms dense"


def test_every_layer_is_dense_and_says_why(mlp, exported, tmp_path):
    net, inputs = mlp(), {"x": torch.randn(8, 64)}
    export = exported(net, TileWise(32), 0.5, ["first", "second"])
    problems = observe_problems(net, inputs, ["first", "second"])
    masked = mlp()
    masked.load_state_dict(net.state_dict())
    report = swap_layers(net, export, problems, KernelChoice(), device=CPU, dtype=torch.float32, inputs=inputs)
    assert report.sparse_flops_share == 1
    kept = kept_dense(report, masked, "it is slower")
    assert kept.kernels == {"dense_linear": 2} and kept.sparse_layer_share == kept.sparse_flops_share == 0
    assert kept.dense_layers == {"first": "it is slower", "second": "it is slower"}
    assert kept.layers["first"].weight_bytes == 64 * 96 * 4
    save_choices(kept, tmp_path / "export")
    loaded = mlp()
    load_sparse(loaded, tmp_path / "export", inputs, device=CPU, dtype=torch.float32)
    assert type(loaded.first) is type(loaded.second) is nn.Linear
    assert torch.equal(loaded(**inputs), masked(**inputs))
