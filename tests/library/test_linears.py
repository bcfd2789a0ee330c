"""Conv1D of GPT-2 and packed attention are pruned, recovered, saved, loaded and swapped as Linears."""

import copy

import pytest
import torch
import transformers
from torch import Tensor, nn

import sparsefront as sf
from sparsefront.models.linears import as_linears

IDS = torch.randint(5, 90, (3, 12), generator=torch.Generator().manual_seed(0))
GPT2 = transformers.GPT2Config(
    vocab_size=100, n_positions=32, n_embd=32, n_layer=2, n_head=4, bos_token_id=1, eos_token_id=1
)


class Encoder(nn.Module):
    """Post-norm, then a decoder layer that reads it: attention to itself, and across."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, activation="gelu")
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(32, 4, 64, batch_first=True), 1)
        self.head = nn.Linear(32, 5)

    def forward(self, x: Tensor, padding: Tensor | None = None) -> Tensor:
        memory = self.encoder(x, src_key_padding_mask=padding)
        return self.head(self.decoder(x, memory, memory_key_padding_mask=padding))


def gpt2() -> tuple[nn.Module, dict]:
    return transformers.GPT2LMHeadModel(GPT2), {"input_ids": IDS, "use_cache": False}


def encoder() -> tuple[nn.Module, dict]:
    padding = torch.arange(7) >= torch.tensor([[7], [4], [2]])
    return Encoder(), {"x": torch.randn(3, 7, 32), "padding": padding}


def outputs(net: nn.Module, inputs: dict) -> Tensor:
    with torch.no_grad():
        found = net(**inputs)
    return getattr(found, "logits", found)


NETWORKS = {"gpt2": (gpt2, 8, 2), "encoder": (encoder, 22, 3)}


@pytest.mark.parametrize("name", NETWORKS)
def test_every_step_takes_them(name, tmp_path):
    torch.manual_seed(0)
    make, layers, blocks = NETWORKS[name]
    net, inputs = make()
    net.eval()
    unpruned, expected = copy.deepcopy(net), outputs(net, inputs)
    as_linears(net)
    torch.testing.assert_close(outputs(net, inputs), expected)
    net = copy.deepcopy(unpruned)
    masks = sf.prune(net, "tile_wise", 0.5, granularity=16, example_inputs=inputs, tell=lambda _: None)
    assert len(masks) == layers
    assert all(mask.shape == net.get_submodule(layer).weight.shape for layer, mask in masks.items())
    batches, loss = [inputs | {"labels": IDS}], None
    if name == "encoder":
        batches, loss = [(inputs, torch.zeros(3, 7).long())], lambda y, target: y.flatten(0, 1).logsumexp(1).mean()
    # the dense network is as it was before
    sf.recover(net, masks, batches, loss=loss, recovery="distill", dense_net=unpruned, epochs=1)
    expected = outputs(net.eval(), inputs)
    export = sf.save(tmp_path, net, masks)
    for layer in masks:
        weight = net.get_submodule(layer).weight.detach()
        assert torch.equal(export.format(layer).to_dense(), weight.flatten(1)), layer
    fresh = make()[0].eval()
    loaded = sf.load(tmp_path, fresh)
    assert all(torch.equal(loaded[layer], mask) for layer, mask in masks.items())
    torch.testing.assert_close(outputs(fresh, inputs), expected)
    report = sf.swap(fresh, loaded, inputs)
    assert all(report.layers[layer].is_sparse for layer in masks) and not report.fusion.unsupported
    assert len(report.fusion.rewritten) == blocks
    torch.testing.assert_close(outputs(fresh, inputs), expected, atol=1e-5, rtol=1e-4)


def test_what_stays():
    """Nested tensors need the packed weights, hooks the module, and masks of other layers neither."""
    nested = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 1)
    assert nested.use_nested_tensor and not as_linears(nested)
    hooked = nn.Sequential(nn.MultiheadAttention(16, 2), nn.MultiheadAttention(16, 2, add_zero_attn=True))
    hooked[0].register_forward_hook(lambda *_: None)
    assert not as_linears(hooked)
    net = Encoder()
    assert as_linears(net, ["encoder.layers.0.linear1", "decoder.layers.0.self_attn.k"]) == [
        "decoder.layers.0.self_attn"
    ]


TRANSPOSED = {
    "image": (
        nn.ConvTranspose2d,
        {"kernel_size": (3, 2), "stride": (2, 3), "padding": 1, "output_padding": (1, 2)},
        (5, 6),
    ),
    "dilated": (nn.ConvTranspose2d, {"kernel_size": 3, "dilation": (1, 2), "bias": False}, (4, 4)),
    "sequence": (nn.ConvTranspose1d, {"kernel_size": 4, "stride": 2, "padding": 1}, (7,)),
}


@pytest.mark.parametrize(("kind", "settings", "sides"), TRANSPOSED.values(), ids=TRANSPOSED)
def test_transposed_convolutions_are_linears(kind, settings, sides, tmp_path):
    torch.manual_seed(0)
    make = lambda: nn.Sequential(kind(16, 16, **settings), nn.ReLU(), kind(16, 4, **settings)).eval()  # noqa: E731
    net, fresh, x = make(), make(), torch.randn(2, 16, *sides)
    expected, weight = net(x), net[0].weight
    converted = copy.deepcopy(net)
    as_linears(converted)
    torch.testing.assert_close(converted(x), expected)
    converted.load_state_dict(net.state_dict())
    for layer in converted.children():
        getattr(layer, "product", layer).register_forward_pre_hook(lambda *_: None)  # not the operator
    torch.testing.assert_close(converted(x), expected)
    torch.testing.assert_close(converted[0](x[0]), net[0](x[0]))
    larger = [side + 1 for side in net[0](x).shape[2:]]
    if settings.get("stride", 1) == 2:
        torch.testing.assert_close(converted[0](x, larger), net[0](x, larger))
    masks = sf.prune(net, "n_m", 0.5, importance="wanda", calibration=[(x,)], tell=len)
    assert list(masks) == ["0.product"] and net[0].product.weight is weight
    expected = net(x)
    sf.save(tmp_path, net, masks)
    loaded = sf.load(tmp_path, fresh)
    torch.testing.assert_close(fresh(x), expected)
    report = sf.swap(fresh, loaded, (x,))
    assert report.layers["0.product"].is_sparse
    torch.testing.assert_close(fresh(x), expected)
