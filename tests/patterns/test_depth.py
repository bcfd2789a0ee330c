"""depth: whole blocks go, and what is left is a smaller dense network, in the library and in runs."""

import copy

import pytest
import torch
from torch import nn
from transformers import (
    AutoModelForImageClassification,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    BartConfig,
    BertConfig,
    DistilBertConfig,
    GPT2Config,
    GPT2LMHeadModel,
    MPNetConfig,
    RobertaConfig,
    T5Config,
    ViTConfig,
)

import sparsefront as sf
from sparsefront.config.validate import validate
from sparsefront.errors import InvalidSetting
from sparsefront.patterns.depth import Depth
from sparsefront.recovery import distillation
from sparsefront.verify.__main__ import main

SIZES = {"num_hidden_layers": 4, "num_attention_heads": 2, "hidden_size": 16, "intermediate_size": 32}
TEXT = SIZES | {"vocab_size": 50, "max_position_embeddings": 40}
TINY_DISTILBERT = DistilBertConfig(n_layers=4, n_heads=2, dim=16, hidden_dim=32, vocab_size=50)
IDS = torch.arange(2, 34).view(2, 16)
BATCHES = [{"input_ids": IDS, "attention_mask": torch.ones_like(IDS), "labels": torch.tensor([0, 1])}] * 2
CONFIGS = {
    "bert": BertConfig(**TEXT),
    "roberta": RobertaConfig(**TEXT),
    "mpnet": MPNetConfig(**TEXT),
    "distilbert": TINY_DISTILBERT,
    "vit": ViTConfig(**SIZES, image_size=8, patch_size=4, num_channels=1),
}
ON_CPU = ["trainer=cpu", "measure.device=cpu", "model.dim=32", "model.heads=2"]


def bert(config: object = CONFIGS["bert"]) -> nn.Module:
    torch.manual_seed(0)
    return AutoModelForSequenceClassification.from_config(copy.deepcopy(config)).eval()


def pruned(net: nn.Module, pattern: object = "depth", sparsity: float = 0.5, **settings: object) -> sf.Masks:
    return sf.prune(net, pattern, sparsity, tell=len, **settings)


# Which blocks.


@pytest.mark.parametrize(
    ("blocks", "count", "kept"),
    [(12, 6, [0, 2, 4, 7, 9, 11]), (6, 2, [0, 2, 3, 5]), (6, 4, [0, 5]), (4, 3, [0]), (4, 0, [0, 1, 2, 3])],
)
def test_first_and_last_blocks_stay(blocks, count, kept):
    names = [str(place) for place in range(blocks)]
    gone = Depth().select(names, count)
    assert len(gone) == count and [int(name) for name in names if name not in gone] == kept


def test_least_influence_goes():
    assert Depth("importance").select(list("abcd"), 2, [0.3, 0.1, 0.2, 0.1]) == ["b", "d"]


@pytest.mark.parametrize(("sparsity", "count"), [(0.126, 1), (0.3, 1), (0.375, 1), (0.376, 2), (0.875, 3), (0.0, 0)])
def test_sparsity_rounds_to_whole_blocks(sparsity, count):
    assert Depth().count(4, sparsity) == count


@pytest.mark.parametrize(("sparsity", "nearest"), [(0.12, 0.126), (0.9, 0.875)])
def test_none_and_all_blocks_are_rejected(sparsity, nearest):
    with pytest.raises(InvalidSetting, match=f"{nearest:g}$"):
        Depth().count(4, sparsity)
    assert Depth().count(4, nearest) in (1, 3)


@pytest.mark.parametrize("bare", [False, True])
def test_network_without_blocks_is_rejected(bare):
    layers = [nn.Linear(8, 8) for _ in range(3)]
    net = (
        nn.Sequential(*layers)
        if bare
        else nn.Sequential(nn.Sequential(nn.Linear(8, 4)), nn.Sequential(nn.Linear(4, 8)))
    )
    with pytest.raises(InvalidSetting, match="pattern=depth: takes whole blocks, and no two members"):
        pruned(net, layers="*")


BART_SIZES = {"layers": 4, "ffn_dim": 16, "attention_heads": 2}
SEQ2SEQ = {
    "t5": T5Config(num_layers=4, num_decoder_layers=5, d_model=8, d_ff=8, num_heads=2, d_kv=4, vocab_size=9),
    "bart": BartConfig(
        **{f"{part}_{name}": count for part in ("encoder", "decoder") for name, count in BART_SIZES.items()},
        d_model=8,
        vocab_size=9,
        max_position_embeddings=16,
        bos_token_id=0,
        eos_token_id=2,
        decoder_start_token_id=2,
        forced_eos_token_id=2,
    ),
}


@pytest.mark.parametrize("choose", ["even", "importance"])
@pytest.mark.parametrize("kind", SEQ2SEQ)
def test_encoder_and_decoder_lose_alike(kind, choose, tmp_path):
    torch.manual_seed(0)
    whole = AutoModelForSeq2SeqLM.from_config(copy.deepcopy(SEQ2SEQ[kind])).eval()
    net, ids = copy.deepcopy(whole), torch.arange(12).reshape(2, 6) % 9
    inputs = {"input_ids": ids, "decoder_input_ids": ids[:, :4], "use_cache": False}
    batches = [inputs | {"labels": ids[:, :4]}]
    masks = pruned(net, Depth(choose), sparsity=0.5, calibration=batches if choose == "importance" else None)
    gone = sum(not mask.any() for mask in masks.values())
    stacks = [part.block if kind == "t5" else part.layers for part in (net.get_encoder(), net.get_decoder())]
    assert [len(stack) for stack in stacks] == ([2, 3] if kind == "t5" else [2, 2]) and gone > 0
    sf.save(tmp_path, net, masks)
    again = AutoModelForSeq2SeqLM.from_pretrained(tmp_path).eval()
    sf.load(tmp_path, whole)
    assert torch.equal(again(**inputs).logits, net(**inputs).logits)
    assert torch.equal(whole(**inputs).logits, net(**inputs).logits)


def test_influence_is_what_a_block_changes():
    class Adds(nn.Module):
        def __init__(self, scale: float) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 8, bias=False)
            nn.init.constant_(self.layer.weight, scale)

        def forward(self, x):
            return x + self.layer(x) * torch.arange(8.0)

    net = nn.Sequential(*(Adds(scale) for scale in (1.0, 0.001, 0.5, 0.0)), nn.Linear(8, 2))
    masks = pruned(net, Depth("importance"), calibration=[torch.rand(4, 8) for _ in range(2)])
    assert [name for name, mask in masks.items() if not mask.any()] == ["1.layer", "3.layer"] and len(net) == 3
    with pytest.raises(InvalidSetting, match="calibration=None: pattern.choose=importance"):
        pruned(net, Depth("importance"))


# What is left.


def test_gpt2_loses_blocks_of_conv1d(tmp_path):
    torch.manual_seed(0)
    net = GPT2LMHeadModel(GPT2Config(vocab_size=50, n_embd=16, n_layer=4, n_head=2, n_positions=32)).eval()
    masks = pruned(net)
    sf.save(tmp_path, net, masks)
    again = GPT2LMHeadModel.from_pretrained(tmp_path).eval()
    assert again.config.n_layer == 2 == len(net.transformer.h) and len(masks) == 16
    assert torch.equal(again(IDS).logits, net(IDS).logits)


@pytest.mark.parametrize("kind", CONFIGS)
def test_transformers_opens_the_smaller_network(kind, tmp_path):
    auto = AutoModelForImageClassification if kind == "vit" else AutoModelForSequenceClassification
    torch.manual_seed(0)
    config = copy.deepcopy(CONFIGS[kind])
    net, other = auto.from_config(config).eval(), auto.from_config(config)
    x = {"pixel_values": torch.rand(2, 1, 8, 8)} if kind == "vit" else {"input_ids": IDS}
    masks = pruned(net)
    assert other.config.num_hidden_layers == 4  # it shares the configuration
    sf.save(tmp_path, net, masks)
    again = auto.from_pretrained(tmp_path).eval()
    assert again.config.num_hidden_layers == 2 and torch.equal(again(**x).logits, net(**x).logits)


def test_load_takes_whole_and_smaller_networks(tmp_path):
    whole = bert()
    masks = pruned(net := copy.deepcopy(whole))
    sf.save(tmp_path, net, masks)
    for given in (copy.deepcopy(whole), copy.deepcopy(net)):
        read = sf.load(tmp_path, given)
        assert torch.equal(given(IDS).logits, net(IDS).logits) and read.spec.blocks == masks.spec.blocks
        assert read.keys() == masks.keys() and all(torch.equal(read[name], masks[name]) for name in masks)
    with pytest.raises(InvalidSetting, match="folder="):
        sf.load(tmp_path, bert(RobertaConfig(**TEXT)))


# What follows in the library.


@pytest.mark.parametrize(
    "recovery", ["none", "finetune", "lr_rewind", sf.recovery.Distill(hidden_states=1.0), "square_head"]
)
def test_recoveries_of_a_smaller_network(recovery):
    dense, net = bert(), bert()
    masks = pruned(net)
    before = copy.deepcopy(net.state_dict())
    left = sf.recover(net, masks, BATCHES, recovery=recovery, dense_net=dense)
    assert left.keys() == masks.keys() and left.spec.blocks == masks.spec.blocks and left.sparsity == 0.5
    assert [record.sparsity_achieved for record in left.rounds] == [0.5]
    moved = any(not torch.equal(before[name], tensor) for name, tensor in net.state_dict().items())
    assert moved == (recovery != "none") and len(net.bert.encoder.layer) == 2


def test_blocks_that_stayed_are_compared():
    seen = []
    kept = distillation.TeacherCallback.__init__

    def noted(self, *arguments, **named):
        kept(self, *arguments, **named)
        seen.append((self.hidden_layers, self.learnt_layers))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(distillation.TeacherCallback, "__init__", noted)
        masks = pruned(net := bert())
        sf.recover(net, masks, BATCHES, recovery="square_head", dense_net=bert(), epochs=1)
    assert seen == [([f"bert.encoder.layer.{i}" for i in (0, 3)], [f"bert.encoder.layer.{i}" for i in (0, 1)])]


def test_refusals_of_the_library():
    dense = bert()
    masks = pruned(net := bert())
    refused = {
        "recovery=obs_update: pattern=depth .* none": lambda: sf.recover(net, masks, BATCHES, recovery="obs_update"),
        "net=Bert.*: still has the blocks": lambda: sf.recover(dense, masks, BATCHES),
        "net=Bert.*: still has": lambda: sf.swap(dense, masks, (IDS,)),
        "masks=pattern=depth: .* join no others": lambda: masks | masks,
        "schedule=gradual: .* schedule=one_shot": lambda: pruned(dense, schedule="gradual"),
        "schedule=iterative: .* schedule=one_shot": lambda: pruned(dense, schedule="iterative"),
        "allocation=erk: pattern depth can meet per_layer;": lambda: pruned(dense, allocation="erk"),
        "allocation=global_threshold: ": lambda: pruned(dense, allocation="global_threshold"),
    }
    for message, call in refused.items():
        with pytest.raises(InvalidSetting, match=message):
            call()
    assert len(dense.bert.encoder.layer) == 4


# Runs.


def test_finished_run_gives_smaller_network(tmp_path, capsys):
    places = (f"cache_dir={tmp_path / 'cache'}", f"results_dir={tmp_path / 'results'}", "logger=none")
    quick = ("debug=tiny", "kernel=none", "measure.latency=false", "report.html=false", "report.plot=false")
    found = sf.run(*quick, *places, *ON_CPU, "pattern=depth", "sparsity=0.5")
    assert len(found.network.blocks) == 2 and found.record.sparsity.sparsity_achieved == 0.5
    assert all(mask.shape == found.network.get_submodule(name).weight.shape for name, mask in found.masks.items())
    sf.hold(found.network, found.masks).remove()
    again = sf.load_run(found.folder)
    assert torch.equal(again.network.head.weight, found.network.head.weight)
    main([str(found.folder / "row.json"), "--cache-dir", str(tmp_path / "cache")])
    told = capsys.readouterr().out
    assert "DIFFERS" not in told and all(f"{what}: hold" in told for what in ("masks and weights", "sparsity"))
    assert "accuracy: holds, masked" in told


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["sparsity=0.1"], "^sparsity=0.1: rounds to none of 4 blocks"),
        (["sparsity=0.9"], "^sparsity=0.9: rounds to all of 4 blocks"),
        (["model.depth=1"], "^pattern=depth: takes whole blocks, and no two"),
        (["recovery=weight_rewind", "recipe.save_epoch_weights=true"], "^recovery=weight_rewind: pattern=depth"),
        (["recovery=sr_ste"], "^recovery=sr_ste: "),
        (["schedule=gradual"], "^schedule=gradual: .* schedule=one_shot"),
        (["allocation=erk"], "^allocation=erk: pattern depth can meet per_layer"),
        (["recipe.ignore=['blocks.[0-2]']"], "^recipe.ignore=given: leaves 1 block"),
        (["pattern.choose=top"], "^pattern.choose=top: must be 'even' or 'importance'"),
    ],
)
def test_refusals_of_a_run(composed, overrides, message):
    with pytest.raises(InvalidSetting, match=message):
        validate(composed("pattern=depth", "sparsity=0.5", *overrides))
