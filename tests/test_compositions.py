"""A smaller dense network first, then a pattern: in the library, in one run, saved, loaded and verified as one."""

import copy
import json
import logging

import pytest
import torch
from transformers import BertConfig, BertForSequenceClassification

import sparsefront as sf
from sparsefront.config.validate import validate
from sparsefront.errors import InvalidSetting
from sparsefront.recovery import Distill
from sparsefront.stages.keys import stage_keys
from sparsefront.verify.__main__ import main

ON_CPU = ["trainer=cpu", "measure.device=cpu", "logger=none"]
IDS = torch.arange(32).reshape(2, 16)


def bert(hidden_size: int = 64) -> BertForSequenceClassification:
    torch.manual_seed(0)
    sizes = {"hidden_size": hidden_size, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 128}
    return BertForSequenceClassification(BertConfig(vocab_size=100, **sizes)).eval()


def make_smaller(net: BertForSequenceClassification, how: str) -> None:
    if "depth" in how:
        sf.prune(net, "depth", 0.5, tell=len)
    for axis in ("width", "hidden"):
        if axis in how:
            sf.narrow(net, sf.prune(net, sf.patterns.Channel(axis), 0.5, tell=len))


@pytest.mark.parametrize("how", ["depth", "width", "depth, width", "depth, width, hidden"])
def test_both_prunings_are_saved_as_one(how, tmp_path, caplog):
    net = bert()
    make_smaller(net, how)
    masks = sf.prune(net, "block_wise", 0.75, granularity=8, tell=len)
    with caplog.at_level(logging.WARNING):
        sf.save(tmp_path, net, masks)
    described = "width" not in how  # heads of another width than hidden_size / heads
    assert (tmp_path / "config.json").exists() is described
    assert ("no config.json" in caplog.text) is not described
    expected = net(IDS).logits
    for given in (bert(), copy.deepcopy(net)):  # the original architecture, or the smaller one
        left = sf.load(tmp_path, given)
        assert torch.equal(given(IDS).logits, expected) and left.sparsity == masks.sparsity
        sf.save(tmp_path / "again", given, left)
        sf.swap(given, left, {"input_ids": IDS}, tell=len)
        torch.testing.assert_close(given(IDS).logits, expected)
    for folder in (tmp_path, tmp_path / "again"):
        opened, left = sf.from_pretrained(folder)
        assert torch.equal(opened(IDS).logits, expected) and left.sparsity == masks.sparsity
    sf.load(tmp_path / "again", original := bert())
    assert torch.equal(original(IDS).logits, expected)
    other = bert(hidden_size=32)
    before = copy.deepcopy(other.state_dict())
    with pytest.raises(InvalidSetting, match="folder=.* (does not fit the model|reads 32 units)"):
        sf.load(tmp_path, other)
    assert all(torch.equal(before[name], tensor) for name, tensor in other.state_dict().items())


def test_the_larger_network_teaches():
    teacher, net = bert(), bert()
    make_smaller(net, "depth, width")
    masks = sf.prune(net, "n_m", 0.5, schedule="gradual", tell=len)
    batches = [({"input_ids": IDS, "labels": torch.tensor([0, 1])})] * 4
    trainer = sf.TrainerSettings(accelerator="cpu", progress_bar=False)
    taught = {"recovery": Distill(hidden_states=1.0), "dense_net": teacher, "epochs": 1, "trainer": trainer}
    after = sf.recover(net, masks, batches, **taught)
    assert after.sparsity == 0.5 and after.spec.structure == masks.spec.structure != ()
    taught["recovery"] = Distill(hidden_states=1.0, hidden_layers=["bert.encoder.layer.0.intermediate"])
    with pytest.raises(InvalidSetting, match=r"hidden_layers=.*: gives \[2, 16, 64\] and in the teacher \[2, 16, 128"):
        sf.recover(net, masks, batches, **taught)


def test_one_run_makes_both(tmp_path, capsys):
    structured = "structured=depth structured.sparsity=0.25 schedule=gradual precision=int8"
    places = (f"cache_dir={tmp_path / 'cache'}", f"results_dir={tmp_path / 'results'}", *ON_CPU)
    quick = ("debug=tiny", "kernel=reference", "report.html=false", "report.plot=false", "control=dense_continued")
    block = ("pattern=block_wise", "granularity=8", "sparsity=0.75")
    ran = sf.run(*quick, *places, *structured.split(), *block)
    row = json.loads((ran.folder / "row.json").read_text())
    choice, sparsity = row["choice"], row["sparsity"]
    assert choice["structured"] == "depth" and choice["structured_parameters"]["sparsity"] == 0.25
    assert sparsity["sparsity_target"] == sparsity["sparsity_achieved"] == 0.75
    for left in ("weights_left", "theoretical_flops_left"):
        assert sparsity[left] == pytest.approx(0.75 * 0.25)
    assert row["size"]["weight_bytes_dense"] > 3 * row["size"]["weight_bytes_sparse"]
    assert row["quality"]["dense_continued"] is not None
    again = sf.load_run(ran.folder)
    assert torch.equal(again.network.head.weight, ran.network.head.weight) and again.masks.sparsity == 0.75
    main([str(ran.folder / "row.json"), "--cache-dir", str(tmp_path / "cache")])
    told = capsys.readouterr().out
    assert "DIFFERS" not in told and all(f"{what}: hold" in told for what in ("masks and weights", "sparsity"))


def test_smaller_network_recovers_first(tmp_path, capsys):
    places = (f"cache_dir={tmp_path / 'cache'}", f"results_dir={tmp_path / 'results'}", *ON_CPU)
    quick = ("debug=tiny", "kernel=reference", "report.html=false", "report.plot=false", "recovery=distill")
    block = ("structured=width", "pattern=block_wise", "granularity=8", "sparsity=0.75")
    share = (
        *block,
        "structured.recovery_share=0.4",
        "recipe.recovery_epochs=null",
        "recipe.recovery_steps=5",
        "control=dense_distilled",
    )
    ran = sf.run(*quick, *places, *share)
    row = json.loads((ran.folder / "row.json").read_text())
    assert row["cost"]["recovery_steps"] == 5 and row["choice"]["structured_parameters"]["recovery_share"] == 0.4
    assert row["quality"]["dense_distilled"] is not None
    (trained,) = [json.loads(file.read_text())["rounds"] for file in tmp_path.glob("cache/prune/*/training.json")]
    assert [one["steps"] for one in trained] == [2]
    assert main([str(ran.folder / "row.json"), "--cache-dir", str(tmp_path / "cache")]) in (0, 3)
    assert "DIFFERS" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("structured", "alone"),
    [
        ("structured=depth structured.sparsity=0.25", "pattern=depth sparsity=0.25"),
        ("structured=depth schedule=gradual allocation=erk", "pattern=depth sparsity=0.5"),
        ("structured=width", "pattern=channel pattern.axis=width sparsity=0.5"),
    ],
)
def test_structured_alone_is_that_pattern(structured, alone, composed):
    keys = [stage_keys(validate(composed(*given.split()))) for given in (f"{structured} pattern=dense", alone)]
    assert keys[0] == keys[1]
    composition = validate(composed(*structured.split(), "pattern=element_wise", "sparsity=0.5"))
    assert stage_keys(composition).structure == keys[1].prune, "one stage makes the smaller network for both"
    assert composition.config_hash != validate(composed("pattern=element_wise", "sparsity=0.5")).config_hash
    nothing = validate(composed("structured=depth", "structured.sparsity=0"))
    assert stage_keys(nothing) == stage_keys(validate(composed()))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ("structured.sparsity=0.5", "^structured.sparsity=0.5: is 0 with structured=none"),
        ("structured.recovery_share=0.5", "^structured.recovery_share=0.5: is 0 with structured=none"),
        (
            "structured=depth structured.recovery_share=0.5 pattern=dense",
            "^structured.recovery_share=0.5: .* prunes nothing",
        ),
        (
            "structured=depth structured.recovery_share=0.5",
            "^structured.recovery_share=0.5: divides recipe.recovery_steps",
        ),
        (
            "structured=depth structured.recovery_share=0.1 recipe.recovery_steps=4 recipe.recovery_epochs=null",
            "^structured.recovery_share=0.1: leaves one of the two recoveries none of 4 steps",
        ),
        ("structured=depth structured.sparsity=0.99", "^structured.sparsity=0.99: rounds to all of 4 blocks"),
        ("structured=depth structured.sparsity=0.05", "^structured.sparsity=0.05: rounds to none of 4 blocks"),
        ("structured=depth model.depth=1", "^structured=depth: takes whole blocks"),
        ("structured=width structured.sparsity=0.0001", "^structured.sparsity=0.0001: rounds to no change"),
        ("structured=experts", "^structured=experts: takes whole experts, and this network has no mixture"),
        ("structured=width pattern=depth", "^pattern=depth: makes a smaller dense network, and so does structured"),
        ("structured=depth pattern=channel pattern.axis=width", "^pattern=channel: makes a smaller dense network"),
        ("structured=width recovery=sr_ste pattern=n_m", "^recovery=sr_ste: starts from the dense weights"),
        ("structured=depth pattern=mixed allocation=latency_search", "^allocation=latency_search: measures the dense"),
        ("structured=width importance=movement schedule=gradual", "^importance=movement"),
        ("structured=width structured.aggregate=l1", "^structured.aggregate=l1: must be"),
        ("structured=width pattern=block_wise granularity=1024", "granularity"),
        (
            "structured=width recovery=square_head recovery.hidden_layers=[blocks.0.mlp.fc1]",
            "^recovery.hidden_layers=blocks.0.mlp.fc1: has fewer outputs than in the teacher",
        ),
    ],
)
def test_impossible_compositions_are_refused(overrides, message, composed):
    with pytest.raises(InvalidSetting, match=message):
        validate(composed(*overrides.split()))
