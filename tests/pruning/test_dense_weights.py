"""Every weight is accounted for: what is pruned, and of all else why it stays dense."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import sparsefront as sf
from sparsefront.masks.weight_view import as_matrix
from sparsefront.pruning.calibration import as_rows
from sparsefront.pruning.layers import count_weights

TORCH = "no kernel is there for a module of its kind, {}"
READ = "a parameter of {} itself, and not the weight of a Linear or convolution"


class Experts(nn.Module):
    """Two experts in one parameter, and what each adds."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Parameter(torch.randn(2, 16, 16))
        self.added, self.token = nn.Parameter(torch.randn(16)), nn.Parameter(torch.randn(1, 1, 16))

    def forward(self, x):
        return (x @ self.up).mean(0) + self.added + self.token


class Many(nn.Module):
    """A module of each kind."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(32, 16), nn.Embedding(8, 16)
        self.conv, self.up = nn.Conv1d(16, 16, 3, padding=1), nn.ConvTranspose1d(16, 16, 1, groups=2)
        self.lstm, self.rnn = nn.LSTM(16, 32, batch_first=True, proj_size=16), nn.RNN(16, 16, batch_first=True)
        # with added keys it is not split
        self.attention, self.norm = nn.MultiheadAttention(16, 2, batch_first=True, add_bias_kv=True), nn.LayerNorm(16)
        self.experts, self.read, self.body, self.idle, self.head = Experts(), *(nn.Linear(16, 16) for _ in range(4))

    def forward(self, tokens):
        x = self.tokens(tokens) + self.places.weight[: tokens.shape[1]]
        x = self.up(self.conv(x.mT)).mT
        x = self.rnn(self.lstm(x)[0])[0]
        x = self.norm(self.attention(x, x, x)[0]) + self.experts(x[:, :1])
        return self.head(self.body(F.linear(x, self.read.weight)))


DENSE = {
    "tokens": TORCH.format("Embedding"),
    "places": TORCH.format("Embedding"),
    "up": TORCH.format("ConvTranspose1d"),
    "lstm": "an LSTM with projections (proj_size=16) is not split into Linears",
    "rnn": TORCH.format("RNN"),
    "attention.in_proj_weight": READ.format("MultiheadAttention"),
    "experts.up": READ.format("Experts"),
}
TOKENS = torch.randint(0, 32, (2, 8), generator=torch.Generator().manual_seed(0))


@pytest.fixture
def net() -> nn.Module:
    torch.manual_seed(0)
    return Many().eval()


def test_reasons_of_every_kind(net, capsys):
    masks = sf.prune(net, "n_m", 0.5, example_inputs=(TOKENS,))
    assert list(masks) == ["body"] and masks.dense == DENSE
    assert masks.ignored == {
        "conv": "the first convolution, which reads the input",
        "attention.out_proj": "its weight is read without a call of it",
        "read": "its weight is read without a call of it",
        "idle": "the example inputs do not reach it",
        "head": "the head, which gives the network's output",
    }
    weights = (
        sum(parameter.numel() for parameter in net.parameters() if parameter.dim() > 1) - 48
    )  # a token is a vector, and so are the added keys
    assert count_weights(net) == weights
    assert capsys.readouterr().out.splitlines()[1] == (
        f"prune: 50.0% of the weights in 1 layer are zero, {128 / weights:.1%} of all in the network; dense: 2 Embedding, "
        "1 ConvTranspose1d, 1 LSTM, 1 RNN, 1 MultiheadAttention, 1 Experts"
    )
    report = sf.swap(net, masks, (TOKENS,))
    assert report.others == DENSE and report.sparse_layer_share == 1 / 6
    lines = [line.split() for line in str(report).splitlines()]
    assert all([name, "dense:", *why.split()] in lines for name, why in DENSE.items())


def test_reasons_of_unchosen_layers(net, tmp_path):
    masks = sf.prune(net, "n_m", 0.5, layers=["body", "read"], ignore="read", tell=len)
    unchosen = ("conv", "attention.out_proj", "idle", "head")
    assert masks.dense == DENSE | dict.fromkeys(unchosen, "not among the layers to prune") and list(masks.ignored) == [
        "read"
    ]
    sf.save(tmp_path / "pruned", net, masks)
    loaded = sf.load(tmp_path / "pruned", Many())
    assert (loaded.dense, loaded.ignored) == (masks.dense, masks.ignored)
    joined = masks | sf.prune(net, "n_m", 0.5, layers="head", tell=len)
    assert "head" not in joined.dense and "read" not in joined.dense and "idle" in joined.dense
    report = sf.swap(net, dict(masks), (TOKENS,))
    assert report.others == DENSE | dict.fromkeys((*unchosen, "read"), "it has no mask")


def test_dense_after_swap_is_said(capsys):
    class Own(nn.Linear):
        def forward(self, x):
            return super().forward(x) + 1

    hooked, x = nn.Linear(16, 16), torch.randn(2, 4, 16)
    hooked.register_forward_hook(lambda module, inputs, output: output * 2)
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 16, batch_first=True), 1)
    net = nn.Sequential(hooked, Own(16, 16), encoder, nn.Linear(16, 16), nn.Linear(16, 4)).eval()
    masks = sf.prune(net, "n_m", 0.5, example_inputs=(x,))
    said = capsys.readouterr().out.splitlines()[0].split("run dense after a swap: ")[1]
    dense = {name: why for name, why in sf.swap(net, masks, (x,)).dense_layers.items() if name in masks}
    assert set(dense) == {"0", "1", "2.layers.0.linear1", "2.layers.0.linear2"}
    assert all(why in said for why in dense.values()) and all(name in said for name in dense)


@pytest.mark.parametrize("padding", [1, "same", "valid"])
@pytest.mark.parametrize("recovery", ["obs_update", "least_squares"])
def test_conv1d_is_pruned_and_runs_dense(recovery, padding, tmp_path):
    torch.manual_seed(0)
    stride = 1 if padding == "same" else 2
    net = nn.Sequential(
        nn.Conv1d(4, 8, 3), nn.ReLU(), nn.Conv1d(8, 16, 3, stride, padding, dilation=2), nn.Flatten(), nn.LazyLinear(2)
    )
    x = torch.randn(64, 4, 12)
    net(x)
    dense = copy.deepcopy(net)
    masks = sf.prune(net, "n_m", 0.5, importance="wanda", calibration=[x], tell=len)
    assert list(masks) == ["2"] and masks["2"].shape == (16, 8, 3)
    rows, weight = as_rows(net[2], (hidden := dense[:2](x))), as_matrix(dense[2].weight)
    torch.testing.assert_close((rows @ weight.T + dense[2].bias).reshape(64, -1, 16).mT, dense[2](hidden))
    lost = (dense[:3](x) - net[:3](x)).norm()
    recovered = sf.recover(net, masks, [x], recovery=recovery, dense_net=copy.deepcopy(dense))
    assert (dense[:3](x) - net[:3](x)).norm() < lost and not net[2].weight[~masks["2"]].any()
    sf.save(tmp_path, net, recovered)
    read = sf.load(tmp_path, dense)
    assert torch.equal(dense(x), net(x))
    report = sf.swap(net, read, (x,))
    assert report.dense_layers["2"] == "no kernel is there for a Conv1d, which is neither Linear nor Conv2d"
    torch.testing.assert_close(dense(x), net(x))
