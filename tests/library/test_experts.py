"""Experts of a mixture are layers: pruned, recovered, saved, loaded and swapped one by one."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from transformers import MixtralConfig, MixtralForCausalLM, Qwen2MoeConfig, Qwen2MoeForCausalLM

import sparsefront as sf
from sparsefront.errors import InvalidSetting
from sparsefront.models.linears import as_linears
from sparsefront.pruning.layers import weighted_layers

SIZES = {
    "vocab_size": 50,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
IDS = {"input_ids": torch.arange(24).reshape(2, 12)}
NETWORKS = {
    "w1": lambda: MixtralForCausalLM(MixtralConfig(num_local_experts=3, intermediate_size=48, **SIZES)),
    "gate_proj": lambda: Qwen2MoeForCausalLM(
        Qwen2MoeConfig(
            num_experts=4, num_experts_per_tok=2, moe_intermediate_size=48, shared_expert_intermediate_size=48, **SIZES
        )
    ),
}


@pytest.fixture(params=NETWORKS)
def dense(request) -> nn.Module:
    torch.manual_seed(0)
    return NETWORKS[request.param]().eval()


@torch.no_grad()
def test_experts_are_saved_and_swapped(dense, tmp_path):
    net = copy.deepcopy(dense)
    masks = sf.prune(net, "element_wise", 0.5, example_inputs=IDS, tell=len)
    of_experts = [name for name in masks if ".experts." in name]
    stacked = sum(weight.numel() for name, weight in dense.named_parameters() if weight.dim() == 3)
    assert sum(masks[name].numel() for name in of_experts) == stacked and of_experts[0].endswith(("w1", "gate_proj"))
    assert set(masks.dense.values()) == {
        "no kernel is there for a module of its kind, Embedding",
        f"no kernel is there for a module of its kind, {type(dense).__name__.removesuffix('ForCausalLM')}TopKRouter",
    }
    expected = net(**IDS).logits
    sf.save(tmp_path, net, masks)
    loaded = copy.deepcopy(dense)
    read = sf.load(tmp_path, loaded)
    assert torch.equal(loaded(**IDS).logits, expected) and read.keys() == masks.keys()
    torch.testing.assert_close(type(dense).from_pretrained(tmp_path).eval()(**IDS).logits, expected)
    report = sf.swap(loaded, read, IDS, kernel="reference")
    torch.testing.assert_close(loaded(**IDS).logits, expected)
    prunable = sum(net.get_submodule(name).weight.numel() for name in weighted_layers(net) if name != "lm_head")
    assert sum(mask.numel() for mask in masks.values()) == prunable and report.sparse_flops_share > 0.9


def test_experts_by_themselves_compute_the_same(dense):
    net = copy.deepcopy(dense)
    as_linears(net)
    loss, expected = (
        F.cross_entropy(one(**IDS).logits.flatten(0, 1), IDS["input_ids"].flatten()) for one in (net, dense)
    )
    assert torch.equal(loss, expected)
    loss.backward(), expected.backward()
    packed, split = dense.model.layers[0].mlp.experts, net.model.layers[0].mlp.experts
    torch.testing.assert_close(
        split.get_submodule("1").get_submodule(split.names[2]).weight.grad, packed.down_proj.grad[1]
    )
    again = copy.deepcopy(net)
    again.load_state_dict(dense.state_dict())  # with 3-D weights
    assert torch.equal(again(**IDS).logits, net(**IDS).logits)


@pytest.mark.parametrize("recovery", ["obs_update", "least_squares", "sparse_swaps"])
def test_experts_recover_without_training(dense, recovery):
    net, batches = copy.deepcopy(dense), [IDS | {"labels": IDS["input_ids"]}] * 2
    masks = sf.prune(net, "n_m", 0.5, example_inputs=IDS, tell=len)
    lost = (net(**IDS).logits - dense(**IDS).logits).norm()
    sf.recover(net, masks, batches, recovery=recovery, dense_net=dense)
    assert (net(**IDS).logits - dense(**IDS).logits).norm() < lost


@pytest.mark.parametrize("importance", ["wanda", "obs", "taylor"])
def test_experts_without_tokens(dense, importance, caplog):
    net = copy.deepcopy(dense)
    one_token = torch.full((1, 4), 5)
    batches = [{"input_ids": one_token, "labels": one_token}]
    masks = sf.prune(net, "n_m", 0.5, importance=importance, calibration=batches, tell=len)
    assert "no calibration token reaches" in caplog.text and f"instead of {importance}" in caplog.text
    by_magnitude = sf.prune(copy.deepcopy(dense), "n_m", 0.5, example_inputs=IDS, tell=len)
    same = [name for name in masks if ".experts." in name and torch.equal(masks[name], by_magnitude[name])]
    assert 3 <= len(same) < len(masks)


@pytest.mark.parametrize("then", ["alone", "and a pattern"])
def test_least_routed_experts_go(dense, then, tmp_path):
    net, count = copy.deepcopy(dense), len(dense.model.layers[0].mlp.experts.gate_up_proj)
    seen = []
    handle = dense.model.layers[0].mlp.experts.register_forward_pre_hook(lambda module, args: seen.append(args))
    dense(**IDS)
    handle.remove()
    mass = torch.zeros(count).index_add(0, seen[0][1].flatten(), seen[0][2].flatten())
    masks = sf.prune(net, sf.patterns.Experts(), 1 / count, calibration=[IDS], tell=len)
    removed = {name.split(".")[5] for name, mask in masks.items() if ".layers.0." in name and not mask.any()}
    assert removed == {str(int(mass.argmin()))} and net.model.layers[0].mlp.experts.num_experts == count - 1
    rows = [row for row in range(count) if str(row) not in removed]
    routers = [one.model.layers[0].mlp.gate.weight for one in (dense, net)]
    assert torch.equal(routers[1], routers[0][rows]) and count - 1 in (
        getattr(net.config, name, None) for name in ("num_local_experts", "num_experts")
    )
    if then == "and a pattern":
        masks = sf.prune(net, "element_wise", 0.5, example_inputs=IDS, tell=len)
    expected = net(**IDS).logits
    sf.save(tmp_path, net, masks)
    whole = copy.deepcopy(dense)
    sf.load(tmp_path, whole)
    assert torch.equal(whole(**IDS).logits, expected)
    torch.testing.assert_close(type(dense).from_pretrained(tmp_path).eval()(**IDS).logits, expected)


@pytest.mark.parametrize(
    ("sparsity", "settings", "message"),
    [
        (0.01, {}, "sparsity=0.01: rounds to none of . experts"),
        (0.99, {}, "sparsity=0.99: rounds to all of . experts"),
        (0.5, {"calibration": None}, "calibration=None: pattern.choose=importance compares what is given to experts"),
        (0.5, {"ignore": "*.experts.0.*"}, "ignore=given: keeps a layer of an expert"),
    ],
)
def test_experts_that_cannot_go_are_refused(dense, sparsity, settings, message):
    with pytest.raises(InvalidSetting, match=message):
        sf.prune(dense, "experts", sparsity, **{"calibration": [IDS], "example_inputs": IDS} | settings)


def test_a_network_without_experts_is_refused():
    with pytest.raises(InvalidSetting, match="pattern=experts: takes whole experts, and this network has no mixture"):
        sf.prune(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2)), "experts", 0.5)
