"""Products with the weights of a network are counted, whichever module and operator makes them."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sparsefront.measure.problems import weight_flops

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


def test_a_computed_weight_counts_for_what_it_is_computed_from():
    net = Call(lambda net, x: net.a(x), a=nn.utils.parametrizations.weight_norm(nn.Linear(16, 16)))
    flops = weight_flops(net, {"x": X})
    assert sum(flops.values()) == pytest.approx(PRODUCT, abs=2)
    assert max(flops, key=flops.__getitem__) == "a.parametrizations.weight.original1"


@pytest.mark.gpu
def test_steps_of_a_recurrent_layer_on_a_gpu():
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
