"""What is counted rather than timed: problems of layers, the timed batch, flops, bytes, zeros, and the roofline bound."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from sparsefront_kernels import FORMATS, Problem, entry
from sparsefront_kernels.linear import SparseLinear
from torch import nn

from sparsefront.measure.memory import (
    measure_sparsity,
    peak_memory_bytes,
    resident_bytes,
    weight_bytes,
)
from sparsefront.measure.problems import (
    MeasuredRates,
    make_inputs,
    observe_problems,
    roofline_bound_us,
    roofline_fraction,
    weight_flops,
)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, stride=2, padding=1)
        self.fc = nn.Linear(8, 8)
        self.unused = nn.Linear(2, 2)

    def forward(self, x):
        tokens = self.conv(x).flatten(2).transpose(1, 2)  # [B, H' * W', 8]
        return self.fc(self.fc(tokens)[:, :1])


def test_rows_of_the_largest_call():
    net = Net().eval()
    seen = observe_problems(net, {"x": torch.randn(2, 3, 8, 8)}, ["conv", "fc", "unused"])
    conv, fc = seen["conv"], seen["fc"]
    assert (conv.problem.m, conv.problem.k, conv.problem.n) == (2 * 4 * 4, 27, 8)
    assert conv.input_shape == (2, 3, 8, 8)
    assert (fc.problem.m, fc.problem.k, fc.problem.n) == (32, 8, 8)
    assert (fc.problem.dtype, fc.problem.device.type) == (torch.float32, "cpu")
    assert "unused" not in seen


def test_layer_that_adds_to_its_product():
    class WithBias(nn.Linear):
        def forward(self, x):
            return super().forward(x), self.bias

    net = nn.Sequential(nn.Linear(4, 6), WithBias(6, 3)).eval()
    seen = observe_problems(net, {"input": torch.randn(5, 4)}, ["0", "1"])
    assert (seen["1"].problem.m, seen["1"].problem.k, seen["1"].problem.n) == (5, 6, 3)


TASK = SimpleNamespace(net_inputs=lambda batch: {name: value for name, value in batch.items() if name != "labels"})


def build(batches, **size):
    return make_inputs(TASK, batches, **{"sequence_length": None, "device": "cpu", "dtype": torch.float32} | size)


def images(*rows):
    return [
        {"x": torch.full((count, 1, 2, 2), float(index)), "labels": torch.zeros(count)}
        for index, count in enumerate(rows)
    ]


def tokens(rows, length):
    ids = torch.arange(rows * length).view(rows, length)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def test_rows_are_collected_over_batches():
    x = build(images(3, 3, 3), batch_size=5)["x"]
    assert x[:, 0, 0, 0].tolist() == [0, 0, 0, 1, 1]


@pytest.mark.parametrize("side", [None, 1, 2, 5])
def test_images_are_brought_to_a_size(side):
    x = build(images(3), batch_size=2, image_size=side)["x"]
    assert x.shape == (2, 1, side or 2, side or 2) and not x.any()
    assert build([tokens(2, 3)], batch_size=2, image_size=side)["input_ids"].shape == (2, 3)


@pytest.mark.parametrize(("length", "expected"), [(2, [0, 1]), (3, [0, 1, 2]), (5, [0, 1, 2, 0, 1])])
def test_tokens_are_cut_or_repeated(length, expected):
    inputs = build([tokens(2, 3)], batch_size=2, sequence_length=length)
    assert inputs["input_ids"][0].tolist() == expected
    assert inputs["attention_mask"].shape == (2, length)


X = torch.randn(2, 5, 16)
PRODUCT = 2 * 10 * 16 * 16  # of ten rows with a weight [16, 16]


class Call(nn.Module):
    """Its forward is a function of it and x."""

    def __init__(self, forward, **parts) -> None:
        super().__init__()
        self._forward = forward
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, x):
        return self._forward(self, x)


def parameter(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(*shape))


def attention(net: Call, x: torch.Tensor) -> torch.Tensor:
    return net.a(x, x, x, need_weights=False)[0]


NETS = {
    "a called layer, twice": (Call(lambda net, x: net.a(net.a(x)), a=nn.Linear(16, 16)), {"a.weight": 2 * PRODUCT}),
    "an attention's own projection": (
        Call(attention, a=nn.MultiheadAttention(16, 2, batch_first=True).eval()),
        {"a.in_proj_weight": 3 * PRODUCT, "a.out_proj.weight": PRODUCT},
    ),
    "an encoder layer": (
        nn.TransformerEncoderLayer(16, 2, 16, batch_first=True).eval(),
        {
            "self_attn.in_proj_weight": 3 * PRODUCT,
            "self_attn.out_proj.weight": PRODUCT,
            "linear1.weight": PRODUCT,
            "linear2.weight": PRODUCT,
        },
    ),
    "a recurrent layer": (
        Call(lambda net, x: net.a(x)[0], a=nn.LSTM(16, 16, batch_first=True)),
        {"a.weight_ih_l0": 4 * PRODUCT, "a.weight_hh_l0": 4 * PRODUCT},
    ),
    "a transposed convolution": (
        Call(lambda net, x: net.a(x.mT), a=nn.ConvTranspose1d(16, 16, 1)),
        {"a.weight": PRODUCT},
    ),
    "an embedding has none": (
        Call(lambda net, x: net.b(net.a((x[..., 0] > 0).long())), a=nn.Embedding(2, 16), b=nn.Linear(16, 16)),
        {"b.weight": PRODUCT},
    ),
    "experts in one parameter": (
        Call(lambda net, x: torch.einsum("bti,eio->ebto", x, net.a), a=parameter(3, 16, 16)),
        {"a": 3 * PRODUCT},
    ),
    "one expert of them": (Call(lambda net, x: F.linear(x, net.a[1]), a=parameter(3, 16, 16)), {"a": PRODUCT}),
    "a cast": (Call(lambda net, x: F.linear(x.double(), net.a.double()), a=parameter(16, 16)), {"a": PRODUCT}),
    "two in one product": (
        Call(lambda net, x: F.linear(x, torch.cat([net.a.weight, net.b])), a=nn.Linear(16, 16), b=parameter(16, 16)),
        {"a.weight": PRODUCT, "b": PRODUCT},
    ),
    "a projected encoding of positions": (
        Call(lambda net, x: x @ F.linear(net.a, net.b).T, a=parameter(10, 16), b=parameter(16, 16)),
        {"b": PRODUCT},
    ),
}


@pytest.mark.parametrize("name", NETS)
def test_all_products(name):
    net, expected = NETS[name]
    assert weight_flops(net, {"src" if name == "an encoder layer" else "x": X}) == expected
    assert torch.backends.mha.get_fastpath_enabled()


def test_computed_weight_counts_its_sources():
    net = Call(lambda net, x: net.a(x), a=nn.utils.parametrizations.weight_norm(nn.Linear(16, 16)))
    flops = weight_flops(net, {"x": X})
    assert sum(flops.values()) == pytest.approx(PRODUCT, abs=2)
    assert max(flops, key=flops.__getitem__) == "a.parametrizations.weight.original1"


@pytest.mark.gpu
def test_recurrent_steps_on_a_gpu():
    """By cuDNN's operator, from a state that is given and one that was computed."""

    class Steps(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm = nn.LSTM(16, 24, 2, batch_first=True)

        def forward(self, x, h):
            _, state = self.lstm(x, (h, h))
            return self.lstm(x, state)[0]

    net = Steps().eval().cuda()
    found = weight_flops(net, {"x": torch.randn(3, 1, 16, device="cuda"), "h": torch.randn(2, 3, 24, device="cuda")})
    assert (
        found["lstm.weight_ih_l0"] == 2 * 2 * 3 * 16 * 4 * 24 and found["lstm.weight_hh_l1"] == 2 * 2 * 3 * 24 * 4 * 24
    )


CPU = torch.device("cpu")


def test_weight_bytes_counts_shared_tensors_once():
    net = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False), nn.BatchNorm1d(4))
    net[1].weight = net[0].weight
    norm = 4 * 4 * 4 + 8  # weight, bias, mean and variance in fp32, an int64 counter
    assert weight_bytes(net) == 64 + norm
    assert weight_bytes(net, torch.float16) == 32 + norm // 2 + 4


def test_weight_bytes_of_a_format():
    mask = torch.zeros(8, 8, dtype=torch.bool)
    mask[:, :2] = True
    stored = FORMATS["gathered"].from_dense(torch.randn(8, 8), mask, tile=8)
    layer = SparseLinear(entry("gathered_reference"), stored, torch.zeros(8))
    assert weight_bytes(nn.Sequential(layer)) == stored.nbytes + 8 * 4 < 8 * 8 * 4


def compressed(pack):
    """A layer whose kernel reads what `pack` makes of its format."""
    mask = torch.ones(8, 8, dtype=torch.bool)
    stored = FORMATS["gathered"].from_dense(torch.randn(8, 8), mask, tile=8)
    return SparseLinear(replace(entry("gathered_reference"), pack=pack), stored, torch.zeros(8)), stored


def test_resident_bytes_of_packed_kernels():
    read_as_it_is, stored = compressed(lambda stored: stored)
    assert resident_bytes(read_as_it_is, CPU) == stored.nbytes + 8 * 4
    packed, stored = compressed(lambda stored: {"panels": [stored.values.clone()], "values": stored.values})
    assert resident_bytes(packed, CPU) == stored.nbytes + stored.values.nbytes + 8 * 4
    assert weight_bytes(packed) == stored.nbytes + 8 * 4


def test_resident_bytes_count_storages_once():
    net = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False), nn.BatchNorm1d(4))
    net[1].weight = net[0].weight
    assert resident_bytes(net, CPU) == weight_bytes(net)
    net[0].weight = nn.Parameter(torch.zeros(100)[:16].view(4, 4))
    net[1].weight = net[0].weight
    assert resident_bytes(net, CPU) == weight_bytes(net) + (100 - 16) * 4  # a view keeps all that is behind it
    net[2].elsewhere = torch.zeros(1000, device="meta")
    assert resident_bytes(net, CPU) == weight_bytes(net) + (100 - 16) * 4


def problem(m, k, n):
    return Problem(m=m, k=k, n=n, dtype=torch.float32, device=CPU)


@pytest.fixture
def net():
    return nn.ModuleDict({"a": nn.Linear(4, 2), "b": nn.Conv2d(1, 2, 2, bias=False), "head": nn.Linear(2, 1)})


def test_dense_layers_count_in_the_sparsity(net):
    mask = torch.tensor([[1, 0, 0, 0], [1, 1, 0, 0]], dtype=torch.bool)
    found = measure_sparsity(net, {"a": mask}, ["a", "b"])
    assert found.layers == {"a": 0.625, "b": 0.0}
    assert found.weight_shares == {"a": 0.5, "b": 0.5}
    assert found.sparsity_achieved == 5 / 16
    assert found.sparsity_whole_model == 5 / (8 + 2 + 8 + 3)


def test_masks_must_fit(net):
    with pytest.raises(ValueError, match="mask of b has 4 elements, its weight 8"):
        measure_sparsity(net, {"b": torch.ones(4, dtype=torch.bool)}, ["a", "b"])
    with pytest.raises(ValueError, match="not prunable: head"):
        measure_sparsity(net, {"head": torch.ones(2, dtype=torch.bool)}, ["a"])


RATES = MeasuredRates(copy_gb_per_s=1000.0, dense_tflop_per_s=100.0)


def test_roofline_is_the_slower_bound():
    large = Problem(m=4096, k=4096, n=4096, dtype=torch.float16, device=CPU)
    computing = roofline_bound_us(large, density=0.5, weight_bytes=2**24, rates=RATES)
    assert computing == pytest.approx(2 * 4096**3 * 0.5 / 100e12 * 1e6)
    single = Problem(m=1, k=4096, n=4096, dtype=torch.float16, device=CPU)
    moving = roofline_bound_us(single, density=0.5, weight_bytes=2**24, rates=RATES)
    assert moving == pytest.approx((2**24 + 2 * 8192) / 1000e9 * 1e6)
    assert roofline_fraction(single, latency_us=2 * moving, density=0.5, weight_bytes=2**24, rates=RATES) == 0.5


@pytest.mark.gpu
def test_peak_memory_of_the_network_alone():
    layer = nn.Linear(1024, 1024, bias=False, device="cuda")
    x = torch.randn(4096, 1024, device="cuda")
    alone = peak_memory_bytes(layer, {"input": x})
    other = torch.empty(1 << 28, dtype=torch.uint8, device="cuda")
    assert peak_memory_bytes(layer, {"input": x}) == alone
    assert alone >= layer.weight.nbytes + x.nbytes  # the output is as large as x
    del other
