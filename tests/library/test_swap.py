"""swap and benchmark: the same outputs by other kernels, and what they say of it."""

import copy

import pytest
import torch
from torch import nn
from transformers import BertConfig, BertModel

import sparsefront as sf

IMAGES = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def pruned(net, **arguments):
    return sf.prune(net, **{"pattern": "tile_wise", "sparsity": 0.5, "granularity": 4, "tell": len} | arguments)


def test_outputs_stay_and_the_report_says_what_runs(cnn):
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
    "inputs", [IMAGES, (IMAGES, torch.ones(16)), {"images": IMAGES}], ids=["a tensor", "two", "by name"]
)
def test_inputs_in_any_form(cnn, inputs):
    assert sf.swap(cnn, pruned(cnn), inputs).layers["mlp"].is_sparse


@pytest.mark.parametrize(
    ("kernel", "expected"),
    [("sparse", "gathered_reference"), ("reference", "gathered_reference"), ("csr", "csr_reference")]
    + [("csr_reference", "csr_reference"), ("none", "dense_linear")]
    + [(sf.KernelChoice("sparse", family="csr"), "csr_reference")],
)
def test_kernels_are_chosen_by_mode_family_name_or_object(cnn, kernel, expected):
    report = sf.swap(cnn, pruned(cnn, layers="mlp"), (IMAGES,), kernel=kernel)
    assert report.layers["mlp"].kernel == expected


def test_the_structure_of_a_plain_mask_decides_its_storage(cnn):
    masks = {"mlp": torch.arange(16).reshape(1, -1).expand(16, 16) % 4 < 1, "body": torch.rand(16, 8, 3, 3) < 0.5}
    with torch.no_grad():
        for name, mask in masks.items():
            cnn.get_submodule(name).weight.masked_fill_(~mask, 0.0)
    report = sf.swap(cnn, masks, (IMAGES,))
    assert {name: layer.family for name, layer in report.layers.items()} == {"mlp": "gathered", "body": "csr"}


@pytest.mark.parametrize("pattern", ["n_m", "vector_wise", "block_wise", "element_wise", "shuffled_block", "channel"])
def test_every_pattern_can_be_swapped(pattern):
    net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 8)).eval()
    x = torch.randn(4, 64)
    masks = sf.prune(net, pattern, 0.5, tell=len)
    expected = net(x)
    report = sf.swap(net, masks, (x,))
    assert all(layer.is_sparse for layer in report.layers.values())
    torch.testing.assert_close(net(x), expected, rtol=1e-4, atol=1e-5)


def test_a_network_in_training_mode_is_swapped_for_inference():
    net = nn.Sequential(nn.Linear(16, 16), nn.Dropout(0.5), nn.Linear(16, 4))
    sf.swap(net, sf.prune(net, "n_m", 0.5, layers="0", tell=len), (torch.randn(2, 16),))
    assert not net.training
    with pytest.raises(RuntimeError, match="sparse layers are for inference: train the masked network"):
        net.train()


class NormInFloat32(nn.Module):
    """Products in bfloat16 and a norm in float32, as many networks have them."""

    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(32), nn.Linear(32, 64).bfloat16(), nn.Linear(64, 16).bfloat16()

    def forward(self, x):
        return self.down(self.up(self.norm(x.float()).bfloat16()).relu())


@pytest.mark.parametrize("kernel", ["none", "sparse"])
def test_every_module_keeps_its_dtype(kernel):
    net, x = NormInFloat32().eval(), torch.randn(4, 32)
    masks = sf.prune(net, "n_m", 0.5, layers=["up", "down"], tell=len)
    expected = net(x)
    report = sf.swap(net, masks, (x,), kernel=kernel)
    assert all(layer.is_sparse == (kernel == "sparse") for layer in report.layers.values())
    assert [part.weight.dtype for part in (net.norm, net.up, net.down)] == [torch.float32, *[torch.bfloat16] * 2]
    torch.testing.assert_close(net(x), expected, rtol=2e-2, atol=2e-2)


def test_what_cannot_work_is_one_line(cnn):
    masks = pruned(cnn)
    options = [
        ({"kernel": "fastest"}, "kernel=fastest: is one of auto, sparse, none, reference, dense, gathered"),
        ({"kernel": None}, "kernel=None: is one of auto, sparse"),
        ({"kernel": ["gathered"]}, r"kernel=\['gathered'\]: is one of auto, sparse"),
        ({"kernel": "ell"}, "kernel.family=ell: runs on none of the pruned layers"),
        ({"masks": {}}, "masks={}: is a dict with at least one layer name"),
        ({"masks": {"mpl": masks["mlp"]}}, r"masks\['mpl'\]=given: names no layer of the network that has a weight"),
        ({"masks": {"mlp": masks["mlp"][:2]}}, r"masks\['mlp'\]=torch.bool \[2, 16\]: must be bool \[16, 16\]"),
        ({"masks": {"mlp": masks["mlp"].float()}}, r"masks\['mlp'\]=torch.float32"),
        ({"example_inputs": (IMAGES.to("meta"),)}, r"example_inputs\['images'\]=meta: must be on the network's device"),
    ]
    for given, message in options:
        with pytest.raises(sf.InvalidSetting, match=message):
            sf.swap(cnn, **{"masks": masks, "example_inputs": (IMAGES,)} | given)
    with torch.no_grad():
        cnn.mlp.weight.fill_(1.0)
    with pytest.raises(ValueError, match="mlp: .* pruned weights are not zero"):
        sf.swap(cnn, masks, (IMAGES,))


QUICK = {"warmup": 0, "samples": 5, "repeats": 2, "autotune_seconds": 0.0}


def test_a_comparison_has_intervals_and_says_that_it_is_of_a_cpu(cnn):
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


def test_networks_of_other_outputs_are_not_compared():
    with pytest.raises(
        sf.InvalidSetting, match=r"net=\[\[2, 3\]\]: must give outputs of the shapes of dense_net's, \[\[2, 8\]\]"
    ):
        sf.benchmark(nn.Linear(4, 8), nn.Linear(4, 3), (torch.randn(2, 4),))


class ReadsWeight(nn.Module):
    """Its `read` is multiplied without being called, once for each of three tokens; its `idle` is not used at all."""

    def __init__(self):
        super().__init__()
        self.called, self.read, self.idle = nn.Linear(16, 32), nn.Linear(32, 32), nn.Linear(32, 32)

    def forward(self, x):
        return nn.functional.linear(self.called(x), self.read.weight, self.read.bias)


def test_layers_whose_weight_is_read_without_a_call_count_as_dense():
    net, x = ReadsWeight().eval(), torch.randn(4, 3, 16)
    report = sf.swap(net, pruned(net, layers=["called", "read", "idle"]), x)
    assert report.dense_layers == {
        "read": "its weight is read without a call of it",
        "idle": "the example inputs do not reach it",
    }
    assert report.sparse_layer_share == pytest.approx(1 / 3)
    assert report.sparse_flops_share == pytest.approx(16 / (16 + 32)), "of 32 outputs each, and as many rows"


class ConvolvingBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)
        self.part = nn.ModuleDict({"mix": nn.Conv2d(16, 16, 1)})

    def forward(self, x):
        y = self.down(self.up(x).relu())  # [B, T, 16]
        return x + self.part["mix"](y.mT.unsqueeze(-1)).squeeze(-1).mT


def test_a_pruned_convolution_in_a_block_runs_its_kernel():
    net = nn.Sequential(*(ConvolvingBlock() for _ in range(2))).eval()
    report = sf.swap(net, pruned(net, layers="*"), (torch.randn(2, 5, 16),))
    assert report.sparse_layer_share == 1 and type(net[0].part["mix"]).__name__ == "SparseConv2d"
    assert "has a pruned convolution, part.mix" in report.fusion.unsupported["0"]


def test_a_forward_may_read_the_settings_of_its_layers(cnn):
    settings = ["in_channels", "out_channels", "kernel_size", "stride", "padding", "dilation", "groups", "padding_mode"]
    expected = [getattr(cnn.body, name) for name in settings]
    sf.swap(cnn, pruned(cnn), (IMAGES,))
    assert [getattr(cnn.body, name) for name in settings] == expected
    assert (cnn.mlp.in_features, cnn.mlp.out_features) == (16, 16)


class Scales(nn.Module):
    """As LayerScale: what a block adds is multiplied by a factor of its own for each feature."""

    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(16), nn.Linear(16, 32), nn.Linear(32, 16)
        self.scale = nn.Parameter(torch.linspace(-2.0, 3.0, 16))

    def forward(self, x):
        return x + self.scale * self.down(self.up(self.norm(x)).relu())


@pytest.mark.parametrize("pattern", [sf.patterns.TileWise(8), "n_m", "element_wise"])
def test_factors_of_features_go_into_the_weights(pattern):
    net, x = nn.Sequential(Scales(), Scales()).eval(), torch.randn(2, 5, 16)
    masks, weight = sf.prune(net, pattern, 0.5, layers="*", tell=len), net[0].down.weight
    expected, before = net(x), weight.detach().clone()
    report = sf.swap(net, masks, x)
    assert report.sparse_layer_share == 1 and "residual" in str(report) and torch.equal(weight, before)
    torch.testing.assert_close(net(x), expected, rtol=1e-4, atol=1e-5)


def test_hooks_are_called_after_the_swap_as_before(cnn):
    given = []
    cnn.mlp.register_forward_hook(lambda module, args, output: given.append(output))
    report = sf.swap(cnn, pruned(cnn), (IMAGES,))
    given.clear()
    cnn(IMAGES)
    assert len(given) == 1 and "forward hooks" in report.dense_layers["mlp"] and report.layers["body"].is_sparse


def test_hidden_states_that_a_transformers_network_records_are_those_of_the_masked_one():
    widths = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    net = BertModel(BertConfig(**widths, vocab_size=50, output_hidden_states=True)).eval()
    inputs = {"input_ids": torch.arange(12).reshape(2, 6)}
    masks = pruned(net, layers="encoder.*")
    masked = copy.deepcopy(net)
    report = sf.swap(net, masks, inputs)
    with torch.inference_mode():
        states, expected = net(**inputs).hidden_states, masked(**inputs).hidden_states
    assert len(states) == len(expected) == 3 and report.sparse_layer_share == 1
    for one, other in zip(states, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("how", ["by the call", "by the config", "in a network of one's own"])
def test_hidden_states_of_blocks_that_were_rewritten_are_refused(how):
    widths = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    bert = BertModel(BertConfig(**widths, vocab_size=50)).eval()
    net = Wraps(bert) if how == "in a network of one's own" else bert
    inputs = {"input_ids": torch.arange(12).reshape(2, 6)}
    unfused = copy.deepcopy(net)
    masks = pruned(net, layers="*encoder.layer.*")
    pruned(unfused, layers="*encoder.layer.*")
    report = sf.swap(net, masks, inputs)
    assert report.fusion.blocks and net(**inputs) is not None
    asked = {} if how == "by the config" else {"output_hidden_states": True}
    bert.config.output_hidden_states = how == "by the config"
    for again in (net, copy.deepcopy(net)):
        with pytest.raises(RuntimeError, match="output_hidden_states: sf.swap has rewritten blocks"):
            again(**inputs, **asked)
    sf.swap(unfused, masks, inputs, kernel=sf.KernelChoice(fuse=False))
    assert len(unfused(**inputs, output_hidden_states=True).hidden_states) == 3


class Wraps(nn.Module):
    def __init__(self, bert):
        super().__init__()
        self.bert = bert

    def forward(self, input_ids, output_hidden_states=False):
        return self.bert(input_ids, output_hidden_states=output_hidden_states)


def test_a_network_whose_outputs_cannot_be_compared_is_neither_swapped_nor_timed():
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


def test_networks_of_two_dtypes_are_not_compared(cnn):
    with pytest.raises(sf.InvalidSetting, match="net=torch.float16: must be in the dtype of dense_net, torch.float32"):
        sf.benchmark(cnn, copy.deepcopy(cnn).half(), (IMAGES,))


def test_a_network_that_was_swapped_is_not_swapped_again(cnn):
    masks = pruned(cnn)
    sf.swap(cnn, masks, (IMAGES,))
    with pytest.raises(sf.InvalidSetting, match="net=Cnn: was swapped already: give a copy of the pruned network"):
        sf.swap(cnn, masks, (IMAGES,))
