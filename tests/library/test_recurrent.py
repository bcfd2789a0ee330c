"""The gate matrices of nn.LSTM and nn.GRU are pruned, recovered, saved, loaded and swapped as Linears."""

import copy
import warnings
from itertools import product
from types import SimpleNamespace

import pytest
import torch
from sparsefront_kernels.linear import SparseLinear
from sparsefront_kernels.recurrent import SparseGates
from torch import Tensor, nn
from torch.nn.utils import weight_norm
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

import sparsefront as sf
from sparsefront.inference import recurrent
from sparsefront.inference.choice import KernelChoice
from sparsefront.inference.swap import load_sparse, save_choices
from sparsefront.measure.execution_mode import fastest_execution_mode
from sparsefront.models.linears import as_linears
from sparsefront.models.recurrent import GateLinear, LstmSteps, SplitGRU, SplitLSTM
from sparsefront.pruning.calibration import sum_over_inputs

LENGTHS = torch.tensor([2, 5, 3])
TOKENS = torch.randint(0, 50, (4, 9), generator=torch.Generator().manual_seed(0))


class Tagger(nn.Module):
    def __init__(self, kind: type[nn.Module] = nn.LSTM) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 32)
        self.lstm = kind(32, 32, 2, batch_first=True, bidirectional=True, dropout=0.2)
        self.head = nn.Linear(64, 7)

    def forward(self, input_ids: Tensor) -> Tensor:
        return self.head(self.lstm(self.embedding(input_ids))[0])


def tagger(kind: type[nn.Module] = nn.LSTM) -> nn.Module:
    torch.manual_seed(0)
    return Tagger(kind).eval()


def quiet(line: str) -> None:
    pass


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("batch_first", [False, True])
def test_outputs_of_the_operator(batch_first, bidirectional, kind):
    """Fused and step by step, of padded and packed sequences and of one alone, with a state and without."""
    torch.manual_seed(0)
    padded = torch.randn(3, 5, 6)
    packed = pack_padded_sequence(padded, LENGTHS, batch_first=True, enforce_sorted=False)
    for layers, bias in product((1, 2), (False, True)):
        lstm = kind(6, 8, layers, bias=bias, batch_first=batch_first, bidirectional=bidirectional)
        split = SplitLSTM if kind is nn.LSTM else SplitGRU
        fused, steps = split(lstm), copy.deepcopy(split(lstm))
        steps.hh_l0.register_forward_pre_hook(lambda *_: None)
        states, rows = layers * (1 + bidirectional), 3 if batch_first else 5
        for x, batch in ((padded, (rows,)), (padded[0], ()), (packed, (3,))):
            state = torch.randn(2, states, *batch, 8)
            for given in (None, tuple(state) if kind is nn.LSTM else state[0]):
                expected = lstm(x, given)
                for found in (fused(x, given), steps(x, given)):
                    torch.testing.assert_close(found[1], expected[1])
                    assert isinstance(found[0], PackedSequence) == isinstance(x, PackedSequence)
                    for one, other in zip(found[0], expected[0], strict=True):
                        torch.testing.assert_close(one, other)


def gradients(outputs: Tensor, lstm: nn.Module, x: Tensor) -> list[Tensor]:
    names = ("weight_ih_l", "weight_hh_l", "bias_ih_l", "bias_hh_l")
    weights = [getattr(lstm, f"{name}{layer}", None) for layer in range(2) for name in names]
    if isinstance(lstm, SplitLSTM):
        parts = ((getattr(lstm, f"{part}_l{layer}"), kind) for layer in range(2) for kind, part in KINDS)
        weights = [getattr(part, kind) for part, kind in parts]
    return list(torch.autograd.grad(outputs.square().sum(), [x, *(one for one in weights if one is not None)]))


KINDS = [("weight", "ih"), ("weight", "hh"), ("bias", "ih"), ("bias", "hh")]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("bias", [False, True])
def test_gradients_of_the_operator(bias, dtype):
    """Step by step with hooks, and for inputs of which a part is known only then; half of the weights are zero."""
    torch.manual_seed(0)
    lstm = nn.LSTM(6, 8, 2, bias=bias, batch_first=True, dtype=dtype)
    with torch.no_grad():
        for weight in lstm.parameters():
            weight *= torch.rand_like(weight) < 0.5
    split, hooked = SplitLSTM(lstm), copy.deepcopy(SplitLSTM(lstm))
    hooked.hh_l0.register_forward_pre_hook(lambda *_: None)
    assert split.is_plain and not hooked.is_plain
    x, state = torch.randn(3, 5, 6, dtype=dtype, requires_grad=True), torch.randn(2, 2, 3, 8, dtype=dtype)
    expected, last = lstm(x, tuple(state))
    outputs, states = [], list(zip(*state, strict=True))
    steps = LstmSteps(split, x[..., :4])
    for step in range(5):
        y, states = steps(step, x[:, step, 4:], states)
        outputs.append(y)
    joined = torch.stack([torch.stack(parts) for parts in zip(*states, strict=True)])
    error = {"rtol": 1e-4, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 1e-10, "atol": 1e-12}
    for net, found in ((split, (torch.stack(outputs, 1), joined)), (hooked, hooked(x, tuple(state)))):
        torch.testing.assert_close(found[0], expected, **error)
        torch.testing.assert_close(torch.stack(tuple(found[1])), torch.stack(last), **error)
        own = gradients(found[0], net, x)
        for one, other in zip(own, gradients(lstm(x, tuple(state))[0], lstm, x), strict=True):
            torch.testing.assert_close(one, other, **error)


def test_autocast_leaves_states_of_cells(monkeypatch):
    """As on a GPU in bf16, where the operator would run in fp16."""
    torch.manual_seed(0)
    split, x = SplitLSTM(nn.LSTM(6, 8, 2, batch_first=True)), torch.randn(3, 5, 6)
    expected = split(x)[0]
    monkeypatch.setattr("sparsefront.models.recurrent._casts_otherwise", lambda x: True)
    with torch.autocast("cpu", torch.bfloat16):
        (y, (h, c)), steps = split(x), LstmSteps(split, x)
        states = [(torch.zeros(3, 8), torch.zeros(3, 8))] * 2
        first, states = steps(0, x[:, 0, :0], states)
    assert y.dtype == h.dtype == first.dtype == torch.bfloat16
    assert c.dtype == states[1][1].dtype == torch.float32
    torch.testing.assert_close(y.float(), expected, rtol=2e-2, atol=2e-2)
    torch.testing.assert_close(first, y[:, 0], rtol=2e-2, atol=2e-3)


def test_padding_counts_for_nothing():
    """Of the products of inputs: those of states see no positions."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = nn.LSTM(8, 8, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            return self.lstm(x)[0]

    net, real = Net(), torch.arange(5) < LENGTHS[:, None]
    as_linears(net)
    x = torch.randn(3, 5, 8).masked_fill(~real[..., None], 100.0)
    sums = sum_over_inputs(net, [x], {"ih": net.lstm.ih_l0}, lambda x: x.sum(0), real_positions=lambda _: real)
    torch.testing.assert_close(sums["ih"], x[real].sum(0))


PATTERNS = {
    "element_wise": None,
    "n_m": None,
    "vector_wise": 4,
    "block_wise": 8,
    "tile_wise": 16,
    "uniform": 1,
    "channel": None,
    "shuffled_block": 8,
    "tile_2_4": 16,
    "block_2_4": 16,
}


@pytest.mark.parametrize(("kind", "pattern"), [*((nn.LSTM, pattern) for pattern in PATTERNS), (nn.GRU, "block_wise")])
def test_every_pattern(kind, pattern, tmp_path):
    net = tagger(kind)
    parameter = net.lstm.weight_hh_l0
    masks = sf.prune(net, pattern, 0.5, granularity=PATTERNS[pattern], example_inputs=(TOKENS,), tell=quiet)
    assert set(masks) == {f"lstm.{part}_l{at}" for part in ("ih", "hh") for at in ("0", "0_reverse", "1", "1_reverse")}
    assert masks.ignored == {"head": "the head, which gives the network's output"} and list(masks.dense) == [
        "embedding"
    ]
    assert net.lstm.hh_l0.weight is parameter  # an optimizer may hold it
    # what masked weights give in an nn.LSTM
    plain = tagger(kind)
    plain.load_state_dict(
        {
            name if "lstm" not in name else "lstm.{2}_{1}".format(*name.split(".")): tensor
            for name, tensor in net.state_dict().items()
        }
    )
    expected = plain(TOKENS)
    torch.testing.assert_close(net(TOKENS), expected)
    sf.save(tmp_path, net, masks)
    fresh = Tagger(kind).eval()
    loaded = sf.load(tmp_path, fresh)
    assert all(torch.equal(loaded[layer], mask) for layer, mask in masks.items())
    report = sf.swap(fresh, loaded, (TOKENS,))
    assert all(report.layers[layer].is_sparse for layer in masks) and report.sparse_flops_share > 0.9
    torch.testing.assert_close(fresh(TOKENS), expected)


def test_what_stays_and_why():
    class Kinds(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.projected, self.hooked = nn.LSTM(16, 16, proj_size=8), nn.LSTM(16, 16)
            self.computed, self.split = weight_norm(nn.LSTM(16, 16), "weight_hh_l0"), nn.LSTM(16, 16)
            self.hooked.register_forward_hook(lambda *_: None)

    net = Kinds()
    masks = sf.prune(net, "element_wise", 0.5, tell=quiet)
    assert list(masks) == ["split.ih_l0", "split.hh_l0"]
    assert masks.dense == {
        "projected": "an LSTM with projections (proj_size=8) is not split into Linears",
        "hooked": "an LSTM with forward hooks is not split into Linears",
        "computed": "an LSTM whose weights are computed from other parameters is not split into Linears",
    }
    with pytest.raises(sf.InvalidSetting, match="the whole network is not split into Linears: put it into a module"):
        sf.prune(nn.LSTM(16, 16), "element_wise", 0.5, tell=quiet)


TIMES = {  # of the operator, of single products, of whole steps
    "steps": (9.0, 8.0, 5.0),
    "operator": (4.0, 8.0, 5.0),
    "products": (9.0, 3.0, 5.0),
}


@pytest.mark.parametrize("fastest", TIMES)
def test_fastest_form_of_an_lstm(fastest, monkeypatch, tmp_path):
    """As on a GPU, with times that are made up."""
    operator, products, steps = TIMES[fastest]

    def timed(lstm, x):
        kinds = {type(part) for part in lstm.children()}
        us = steps if SparseGates in kinds else products if SparseLinear in kinds else operator
        return SimpleNamespace(latency_us=us)

    monkeypatch.setattr(recurrent, "time_layer", timed)
    monkeypatch.setattr(recurrent, "_can_be_timed", lambda weight: True)
    monkeypatch.setattr(recurrent, "step_unsupported_reason", lambda *_: None)
    wants = KernelChoice.wants
    monkeypatch.setattr(
        KernelChoice,
        "wants",
        lambda self, kernel, *rest, **more: kernel.name == "lstm_step" or wants(self, kernel, *rest, **more),
    )
    net = tagger()
    masks = sf.prune(net, "tile_wise", 0.5, granularity=16, layers="lstm.*", tell=quiet)
    expected, export = net(TOKENS), sf.save(tmp_path / "export", net, masks)
    packed = pack_padded_sequence(torch.randn(3, 5, 32), LENGTHS, batch_first=True, enforce_sorted=False)
    ended = net.lstm(packed)
    report = sf.swap(net, masks, (TOKENS,))
    torch.testing.assert_close(net(TOKENS), expected)
    torch.testing.assert_close(copy.deepcopy(net)(TOKENS), expected)
    torch.testing.assert_close(net.lstm(packed)[0].data, ended[0].data)
    torch.testing.assert_close(net.lstm(packed)[1], ended[1])
    states = {layer: report.layers[layer] for layer in masks if ".hh" in layer}
    assert {layer.kernel == "lstm_step" for layer in states.values()} == {fastest == "steps"}
    kinds = {"steps": SparseGates, "operator": GateLinear, "products": SparseLinear}
    assert {type(net.get_submodule(layer)) for layer in states} == {kinds[fastest]}
    if fastest == "steps":
        assert not set(states) & report.dense_layers.keys() and report.sparse_flops_share > 0.9
        assert states["lstm.hh_l0"].notes["lstm_step"] == (
            "the whole LSTM: its products 8.0 us, nn.LSTM 9.0 us, lstm_step 5.0 us"
        )
    elif fastest == "operator":
        assert report.dense_layers["lstm.ih_l0"].startswith("the whole LSTM is faster dense: its products 8.0 us")
        assert not any(layer.is_sparse for layer in report.layers.values())
    # the same again, by its plan
    save_choices(report, tmp_path)
    fresh = Tagger().eval()
    as_linears(fresh)
    again = load_sparse(
        fresh,
        export.directory,
        {"input_ids": TOKENS},
        device=torch.device("cpu"),
        dtype=torch.float32,
        choices=tmp_path / "choices.json",
    )
    assert {name: layer.kernel for name, layer in again.layers.items()} == {
        name: layer.kernel for name, layer in report.layers.items()
    }
    torch.testing.assert_close(fresh(TOKENS), expected)


@pytest.mark.gpu
@pytest.mark.parametrize("bidirectional", [False, True])
def test_on_a_gpu(bidirectional):
    """cuDNN's operator on weights in one piece, and sparse steps in a graph, of all directions."""
    torch.manual_seed(0)
    plain = nn.LSTM(128, 128, 2, batch_first=True, bidirectional=bidirectional).to("cuda", torch.float16)
    net = nn.Sequential(copy.deepcopy(plain))
    x = torch.randn(16, 4, 128, device="cuda", dtype=torch.float16)
    masks = sf.prune(net, "tile_wise", 0.75, granularity=64, tell=quiet)
    with torch.inference_mode(), warnings.catch_warnings():
        warnings.simplefilter("error")  # of weights that are not in one piece
        masked = net(x)[0]
        torch.testing.assert_close(copy.deepcopy(net)(x)[0], masked)
        torch.testing.assert_close(copy.deepcopy(net).float()(x.float())[0], masked.float(), atol=5e-3, rtol=1e-2)
    sf.swap(net, masks, (x,), kernel="sparse", seconds=10, tell=quiet)
    settings = {"execution_modes": ("eager", "cuda_graph", "compile"), "device": x.device, "dtype": x.dtype}
    found = fastest_execution_mode(net, {"input": x}, **settings)
    assert not found.not_timed
    torch.testing.assert_close(found.call()[0], masked, atol=5e-3, rtol=1e-2)


@pytest.mark.gpu
@pytest.mark.parametrize("known", [None, 128, 64])
def test_bfloat16_steps_on_a_gpu(known):
    """All at once, and for inputs of which all or a half are known before: close to fp32, with gradients."""
    torch.manual_seed(0)
    plain = nn.LSTM(128, 128, 2, batch_first=True).cuda()
    split, x = SplitLSTM(copy.deepcopy(plain)), torch.randn(16, 12, 128, device="cuda")
    expected = plain(x)[0]
    expected.square().sum().backward()
    with torch.autocast("cuda", torch.bfloat16):
        if known is None:
            y = split(x)[0]
        else:
            steps, outputs = LstmSteps(split, x[..., :known]), []
            states = [(torch.zeros(16, 128, device="cuda"),) * 2] * 2
            for step in range(12):
                output, states = steps(step, x[:, step, known:], states)
                outputs.append(output)
            y = torch.stack(outputs, 1)
    assert y.dtype == torch.bfloat16
    torch.testing.assert_close(y.float(), expected, rtol=0, atol=2e-2)
    y.float().square().sum().backward()
    right = plain.weight_hh_l0.grad
    assert (split.hh_l0.weight.grad - right).norm() < 0.05 * right.norm()
