"""Features that cross blocks go in all layers, embeddings and norms at once; norms of the masked network average what is left."""

import copy
import json

import pytest
import torch
import transformers
from tied_networks import NETWORKS, OTHERS, SIZES, TOKENS
from torch import nn

import sparsefront as sf
from experiments.networks.networks import NETWORKS as MANY
from experiments.networks.table import outputs
from sparsefront.config.validate import validate
from sparsefront.errors import InvalidSetting
from sparsefront.measure.correctness import output_error
from sparsefront.models.linears import as_linears
from sparsefront.patterns.channel import Channel
from sparsefront.patterns.hidden import is_norm
from sparsefront.pruning.unit_hooks import unhook_units
from sparsefront.verify.__main__ import main

HIDDEN = Channel("hidden")
TOP = {
    "bert mlm": (lambda: transformers.BertForMaskedLM(transformers.BertConfig(vocab_size=50, **SIZES)), TOKENS),
    "bert": NETWORKS["bert"],
    "roberta": NETWORKS["roberta"],
    "mpnet": NETWORKS["mpnet"],
    "distilbert": NETWORKS["distilbert"],
    "vit": NETWORKS["vit"],
    "vit_small": NETWORKS["vit_small"],
    "torchvision": NETWORKS["torchvision"],
    **{
        name: (tiny.make, tiny.inputs())
        for name in ("ViT, timm", "GPT-2", "OPT", "Llama", "Phi", "Qwen2", "ConvNeXt", "Phi-3", "Gemma-2")
        for tiny in [(MANY | OTHERS)[name]]
    },
}


def make(name: str) -> tuple[nn.Module, object]:
    """The network, whose biases and norms are not what a pruned feature could get by chance, and its inputs."""
    torch.manual_seed(0)
    build, inputs = TOP[name]
    net = build().eval()
    for parameter in net.parameters():
        nn.init.normal_(parameter, mean=float(parameter.dim() == 1), std=0.2)
    return net, inputs


@pytest.mark.parametrize(
    ("name", "axis"),
    [
        *((name, "hidden") for name in TOP),
        *((name, "all") for name in ("mpnet", "ViT, timm", "GPT-2", "Qwen2", "ConvNeXt")),
    ],
)
def test_masked_network_is_the_narrower(name, axis, tmp_path):
    net, inputs = make(name)
    original, weights = copy.deepcopy(net), sum(parameter.numel() for parameter in net.parameters())
    masks = sf.prune(net, Channel(axis), 0.5, example_inputs=inputs, tell=len)
    assert masks.sparsity == pytest.approx(0.5, abs=0.03)
    expected = outputs(net, inputs)
    plain = copy.deepcopy(net)
    unhook_units(plain)
    assert output_error(outputs(plain, inputs), expected) > 1e-3
    sf.save(tmp_path, net, masks)
    assert sf.narrow(net, masks).layers
    assert output_error(outputs(net, inputs), expected) <= 1e-5
    assert sum(parameter.numel() for parameter in net.parameters()) < 0.87 * weights
    wide = copy.deepcopy(original)
    read = sf.load(tmp_path, wide, narrower=False)
    assert output_error(outputs(wide, inputs), expected) <= 1e-6 and read.sparsity == masks.sparsity
    sf.load(tmp_path, original)
    assert output_error(outputs(original, inputs), outputs(net, inputs)) == 0
    assert not any(hooks for part in original.modules() for hooks in (part._forward_hooks, part._forward_pre_hooks))


def test_every_tensor_of_llama_follows():
    net, inputs = make("Llama")
    net.lm_head.weight = net.model.embed_tokens.weight
    dense = "model.layers.0.mlp.gate_proj"
    masks = sf.prune(net, Channel("hidden", multiple_of=16), 0.3, ignore=dense, example_inputs=inputs, tell=len)
    nn.init.normal_(net.get_submodule(dense).weight)  # as training might: it reads the features that are left
    expected = outputs(net, inputs)
    sf.narrow(net, masks)
    assert output_error(outputs(net, inputs), expected) <= 1e-5
    assert net.lm_head.weight is net.model.embed_tokens.weight and net.lm_head.in_features == 48
    assert all(norm.weight.shape == (48,) for norm in net.modules() if is_norm(norm))
    attention = net.model.layers[0].self_attn
    assert attention.q_proj.weight.shape == (64, 48) and attention.o_proj.weight.shape == (48, 64)


@pytest.mark.parametrize(("name", "described"), [("Llama", True), ("Gemma-2", False), ("bert", False)])
def test_configuration_of_the_same_function(name, described, tmp_path):
    net, inputs = make(name)
    narrowed = sf.narrow(net, sf.prune(net, HIDDEN, 0.25, example_inputs=inputs, tell=len))
    assert (narrowed.not_in_config is None) == described
    masks = sf.prune(net, "element_wise", 0.5, example_inputs=inputs, tell=len)
    sf.save(tmp_path, net, masks)
    opened, _ = sf.from_pretrained(tmp_path)
    assert output_error(outputs(opened, inputs), outputs(net, inputs)) == 0
    if described:
        again = type(net).from_pretrained(tmp_path).eval()
        assert again.config.hidden_size == 48 and output_error(outputs(again, inputs), outputs(net, inputs)) == 0


@pytest.mark.parametrize("schedule", ["one_shot", "gradual"])
@pytest.mark.parametrize("name", ["bert", "Llama"])
def test_masks_hold_during_recovery(name, schedule):
    net, inputs = make(name)
    masks = sf.prune(net, HIDDEN, 0.5, schedule=schedule, example_inputs=inputs, tell=len)
    labels = TOKENS["input_ids"] if name == "Llama" else torch.tensor([0, 1])
    batches = [{**inputs, "labels": labels}] * 6
    trainer = sf.TrainerSettings(accelerator="cpu", progress_bar=False)
    before = copy.deepcopy(net.state_dict())
    masks = sf.recover(net, masks, batches, epochs=1, trainer=trainer)
    net.eval()
    assert masks.sparsity == 0.5 and any(not tensor.equal(before[key]) for key, tensor in net.state_dict().items())
    expected = outputs(net, inputs)
    sf.narrow(net, masks)
    assert output_error(outputs(net, inputs), expected) <= 1e-5


def test_own_loop_holds_norms_too():
    net, inputs = make("bert")
    other = copy.deepcopy(net)
    masks = sf.prune(net, HIDDEN, 0.5, example_inputs=inputs, tell=len)
    with sf.hold(other, masks):
        assert output_error(outputs(other, inputs), outputs(net, inputs)) == 0


def test_norms_average_what_is_left():
    net = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 2))
    with torch.no_grad():
        net[0].weight.copy_(torch.tensor([[1.0, 0, 0], [0.01, 0, 0], [0, 1, 0], [0, 0, 1]]))
        net[0].bias.fill_(5.0)
        net[2].weight.fill_(1.0)
    x = torch.randn(6, 3)
    sf.prune(net, HIDDEN, 0.25, layers=["0", "2"], example_inputs=(x,), tell=len)
    left = torch.nn.functional.layer_norm(x + 5, (3,))
    torch.testing.assert_close(net[1](net[0](x))[:, [0, 2, 3]], left, rtol=1e-5, atol=1e-5)


class Stream(nn.Module):
    """A residual stream of 14 features that something else happens to."""

    def __init__(self, between, *parts):
        super().__init__()
        self.first, self.up, self.down, self.last = (
            nn.Linear(*size) for size in ((8, 14), (14, 24), (24, 14), (14, 3))
        )
        self.between, self.parts = [between], nn.ModuleList(parts)

    def forward(self, x):
        h = self.first(x)
        h = h + self.down(self.up(h).relu())
        return self.last(self.between[0](h, *self.parts))


@pytest.mark.parametrize(
    ("between", "parts", "shape"),
    [
        (lambda h: h * h.mean(1, keepdim=True), (), (4, 8)),
        (lambda h: h / h.shape[-1] ** 0.5, (), (4, 7, 8)),
        (lambda h: h * torch.tensor(h.shape[-1], device=h.device), (), (4, 7, 8)),
        (lambda h: h * (h.shape[-1] > 7), (), (4, 7, 8)),
        (lambda h: h * h.new_ones(h.shape).sum(-1, keepdim=True), (), (4, 7, 8)),
        (lambda h: h * torch.ones_like(h).sum(-1, keepdim=True), (), (4, 7, 8)),
        (lambda h: h * torch.vmap(lambda row: row.mean(-1, keepdim=True))(h), (), (4, 7, 8)),
        (lambda h: torch.stack([row * row.mean(-1, keepdim=True) for row in h]), (), (4, 7, 8)),
        (lambda h: h + nn.functional.pad(h, (1, -1)), (), (4, 7, 8)),
        (lambda h: h + h.transpose(1, 2), (), (4, 14, 8)),
        (lambda h, conv: h * conv(h[:, None]).mean((1, 2, 3))[:, None, None], (nn.Conv2d(1, 4, 3),), (4, 7, 8)),
        (lambda h, norm: h * norm(h).mean((1, 2), keepdim=True), (nn.BatchNorm1d(7),), (4, 7, 8)),
        (lambda h, norm: norm(h), (nn.GroupNorm(2, 14),), (4, 8)),
        (lambda h, norm: norm(h), (nn.utils.parametrizations.weight_norm(nn.LayerNorm(14), dim=None),), (4, 7, 8)),
    ],
)
def test_sizes_and_mixing_keep_features(between, parts, shape):
    net = Stream(between, *parts).eval()
    with pytest.raises(InvalidSetting, match="its features cannot go"):
        sf.prune(net, HIDDEN, 0.5, example_inputs=(torch.randn(shape),), tell=len)


def test_mean_of_channels_keeps_them():
    class Gated(nn.Sequential):
        def forward(self, x):
            h = self[1](self[0](x).relu()).relu()
            return self[2](h * h.mean(1, keepdim=True))

    net, inputs = Gated(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3), nn.Conv2d(8, 4, 3)), torch.randn(2, 3, 32, 32)
    masks = sf.prune(net, Channel("width"), 0.25, layers=["0", "1", "2"], example_inputs=(inputs,), tell=len)
    expected = net(inputs)
    assert sf.narrow(net, masks).layers.keys() == {"0", "1"} and output_error(net(inputs), expected) <= 1e-5


@pytest.mark.parametrize(
    ("between", "parts"),
    [
        (lambda h, norm: norm(h + norm(h)), (nn.LayerNorm(14),)),
        (lambda h, norm: norm(h), (nn.RMSNorm(14, elementwise_affine=False),)),
        (lambda h, layer: layer(layer(h)), (nn.Linear(14, 14),)),
        (lambda h: nn.functional.pad(h, (0, 0, 1, 1)), ()),
    ],
)
def test_hooks_of_users_follow_ours(between, parts):
    net, inputs = Stream(between, *parts).eval(), torch.randn(2, 14, 8)
    for part in parts:
        part.register_forward_hook(lambda module, args, output: output * 3)
    masks = sf.prune(net, HIDDEN, 0.5, example_inputs=(inputs,), tell=len)
    expected = net(inputs)
    assert output_error(torch.compile(net, backend="aot_eager")(inputs), expected) <= 1e-5
    sf.narrow(net, masks)
    assert net.last.in_features < 14 and output_error(net(inputs), expected) <= 1e-5


def test_narrowing_needs_all_hidden_masks():
    net, inputs = make("bert")
    sf.prune(net, HIDDEN, 0.25, example_inputs=inputs, tell=len)
    others = sf.prune(net, Channel("width"), 0.25, example_inputs=inputs, tell=len)
    expected = outputs(net, inputs)
    with pytest.raises(InvalidSetting, match="narrow it with those masks first"):
        sf.narrow(net, others)
    assert output_error(outputs(net, inputs), expected) == 0


@pytest.mark.parametrize("name", ["BERT", "T5", "BART", "Swin", "Mixtral", "TransformerEncoder", "LSTM"])
def test_features_that_cannot_be_followed(name):
    net, inputs = MANY[name].make().eval(), MANY[name].inputs()
    as_linears(net)
    with pytest.raises(
        InvalidSetting, match="fits no prunable layer .*its features cannot go: the network returns them"
    ):
        sf.prune(net, HIDDEN, 0.5, example_inputs=inputs, tell=len)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ("pattern=channel pattern.axis=hidden recovery=obs_update", "^recovery=obs_update: "),
        (
            "structured=width structured.units=hidden recovery=square_head pattern=n_m",
            "^structured.units=hidden: leaves hidden",
        ),
        ("structured=width structured.units=outputs", "^structured.units=outputs: must be"),
        ("structured=width structured.units=hidden pattern=block_wise granularity=160", "^granularity=160"),
    ],
)
def test_refusals_before_training(overrides, message, composed):
    with pytest.raises(InvalidSetting, match=message):
        validate(composed(*overrides.split()))


@pytest.mark.parametrize(
    "pruned",
    [
        "pattern=channel pattern.axis=hidden sparsity=0.5 schedule=gradual",
        "structured=width structured.units=hidden structured.sparsity=0.25 pattern=block_wise granularity=8 sparsity=0.75",
    ],
)
def test_runs_are_recorded_and_verified(pruned, tmp_path, capsys):
    places = (f"cache_dir={tmp_path / 'cache'}", f"results_dir={tmp_path / 'results'}", "logger=none")
    quick = ("debug=tiny", "kernel=reference", "report.html=false", "report.plot=false", "recipe.recovery_epochs=1")
    ran = sf.run(*quick, *places, "trainer=cpu", "measure.device=cpu", *pruned.split())
    row = json.loads((ran.folder / "row.json").read_text())
    sparsity, quality = row["sparsity"], row["quality"]
    assert sparsity["sparsity_achieved"] == sparsity["sparsity_target"] and quality["masked"] == quality["sparse"]
    if "structured" in pruned:
        assert sparsity["weights_left"] == sparsity["theoretical_flops_left"] == pytest.approx(0.75 * 0.25)
    assert main([str(ran.folder / "row.json"), "--cache-dir", str(tmp_path / "cache")]) in (0, 3)
    assert "DIFFERS" not in capsys.readouterr().out
