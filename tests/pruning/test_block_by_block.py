"""A language model gone through block by block has the scores and the masks that it has as a whole."""

from typing import Any

import pytest
import torch
from torch import nn

import sparsefront as sf
from experiments.language_models import plain
from sparsefront.errors import InvalidSetting
from sparsefront.importance.obs import OptimalBrainSurgeon
from sparsefront.importance.wanda import Wanda
from sparsefront.obs.sweep import input_hessian
from sparsefront.pruning import calibration
from sparsefront.pruning.block_by_block import chain_of_blocks
from sparsefront.pruning.calibration import NetworkCalibration, score_weights
from sparsefront.tasks.causal_lm import CausalLM

VOCABULARY, LENGTH = 64, 24
SIZES = {"vocab_size": VOCABULARY, "hidden_size": 32, "num_attention_heads": 4, "max_position_embeddings": 64}


def llama() -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(LlamaConfig(**SIZES, intermediate_size=64, num_hidden_layers=3, num_key_value_heads=2))


def opt() -> nn.Module:
    from transformers import OPTConfig, OPTForCausalLM

    return OPTForCausalLM(OPTConfig(**SIZES, ffn_dim=64, num_hidden_layers=2, word_embed_proj_dim=32))


def qwen() -> nn.Module:
    """Whose second block has a window of attention, and so another mask than the first."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    sizes = {"intermediate_size": 64, "num_hidden_layers": 2, "num_key_value_heads": 2}
    window = {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1}
    return Qwen2ForCausalLM(Qwen2Config(**SIZES, **sizes, **window))


def layers_of(net: nn.Module) -> list[str]:
    return [name for name, part in net.named_modules() if isinstance(part, nn.Linear) and ".layers." in name]


@pytest.fixture(scope="module")
def batches() -> list[dict[str, torch.Tensor]]:
    draw = torch.Generator().manual_seed(0)
    return [{"input_ids": torch.randint(VOCABULARY, (2, LENGTH), generator=draw)} for _ in range(3)]


def scores(net: nn.Module, importance: Any, batches: list, **options: Any) -> dict[str, torch.Tensor]:
    return score_weights(CausalLM(net), layers_of(net), importance=importance, open_loader=lambda: batches, **options)


@pytest.mark.parametrize("make", [llama, opt, qwen])
def test_scores_are_the_whole_networks(make: Any, batches: list, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    net = make()
    assert len(chain_of_blocks(net, layers_of(net))) == net.config.num_hidden_layers
    before = {name: value.clone() for name, value in net.state_dict().items()}
    found = [scores(net, importance, batches) for importance in (Wanda(batches=3), OptimalBrainSurgeon(batches=3))]
    assert all(torch.equal(value, net.state_dict()[name]) for name, value in before.items()) and net.training
    assert not any("forward" in vars(module) for module in net.modules())
    monkeypatch.setattr(calibration, "chain_of_blocks", lambda *_: [])
    whole = [scores(net, importance, batches) for importance in (Wanda(batches=3), OptimalBrainSurgeon(batches=3))]
    for ours, theirs in zip(found, whole, strict=True):
        assert ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_groups_see_what_changed_before(batches: list, monkeypatch: pytest.MonkeyPatch) -> None:
    def halved(net: nn.Module) -> list[dict[str, torch.Tensor]]:
        found = []
        steps = NetworkCalibration(CausalLM(net), layers_of(net), lambda: batches)
        for sums in steps.totals_in_order(batches, input_hessian):
            found.append(sums)
            for name in sums:
                net.get_submodule(name).weight.data *= 0.5
        return found

    nets = []
    for _ in range(2):
        torch.manual_seed(0)
        nets.append(llama())
    ours = halved(nets[0])
    monkeypatch.setattr(calibration, "chain_of_blocks", lambda *_: [])
    theirs = halved(nets[1])
    assert [list(sums) for sums in ours] == [list(sums) for sums in theirs] and len(ours) == 3 * 4
    for mine, other in zip(ours, theirs, strict=True):
        assert all(torch.equal(mine[name], other[name]) for name in mine)


@pytest.mark.parametrize("pattern", ["uniform", "n_m"])
def test_sequential_wanda_is_the_authors(pattern: str, batches: list) -> None:
    window = {"uniform": None, "n_m": 4}[pattern]
    nets = []
    for _ in range(2):
        torch.manual_seed(0)
        nets.append(llama().eval())
    plain.wanda(nets[0], torch.cat([batch["input_ids"] for batch in batches]), window)
    chosen = sf.patterns.NM(m=4) if window else sf.patterns.Uniform(1)
    importance = Wanda(batches=3, sequential=True)
    calls = {"calibration": lambda: batches, "task": CausalLM(nets[1]), "layers": layers_of(nets[1])}
    masks = sf.prune(nets[1], chosen, 0.5, importance=importance, tell=lambda line: None, **calls)
    for name in masks:
        same = (nets[0].get_submodule(name).weight != 0) == masks[name]
        assert same.double().mean() > 0.998, name


def test_refusals_of_sequential_scores() -> None:
    importance = Wanda(sequential=True)
    cases = [
        ({"allocation": "global_threshold"}, "allocation=global_threshold decides among layers: allocation=per_layer"),
        ({"schedule": "iterative"}, "schedule=iterative makes masks again: schedule=one_shot"),
        ({}, "goes from block to block, as in networks of transformers that write text, and this is none"),
    ]
    net = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    for options, message in cases:
        with pytest.raises(InvalidSetting, match=f"importance.sequential=True: .*{message}"):
            sf.prune(
                net, "element_wise", 0.5, importance=importance, calibration=[torch.ones(2, 8)], layers="0", **options
            )
