"""Modules whose mode differs from that of the network around them keep it."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import sparsefront as sf
from sparsefront.latency_search.evaluating import evaluate_pruned
from sparsefront.networks import in_eval_mode, keep_modes
from sparsefront.tasks.plain_task import PlainTask

TRAINER = sf.TrainerSettings(accelerator="cpu", checkpoint=False, progress_bar=False)
DATA = [(torch.randn(8, 6) + 2, torch.randint(0, 3, (8,))) for _ in range(2)]


def network(*, frozen: bool = True) -> nn.Sequential:
    """In training mode, its norm perhaps in eval mode."""
    net = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.1), nn.Linear(8, 8), nn.Linear(8, 3)).train()
    net[1].train(not frozen)
    return net


def modes(net: nn.Module) -> list[bool]:
    return [module.training for module in net.modules()]


@pytest.mark.parametrize("fails", [False, True])
def test_eval_mode_for_a_while(fails):
    net = network()
    before = modes(net)
    try:
        with in_eval_mode(net):
            assert not any(modes(net))
            if fails:
                raise KeyboardInterrupt
    except KeyboardInterrupt:
        pass
    assert modes(net) == before
    with keep_modes(net):
        net.train()
    assert modes(net) == before


def prune(net: nn.Module, **arguments) -> sf.Masks:
    return sf.prune(net, "element_wise", 0.5, tell=len, **arguments)


def recover(net: nn.Module, recovery: str = "finetune") -> None:
    trained = {} if recovery == "none" else {"epochs": 1}
    sf.recover(net, prune(net, layers="3"), DATA, F.cross_entropy, recovery=recovery, trainer=TRAINER, **trained)


WAYS = {
    "prune": lambda net: prune(net, example_inputs=DATA[0][0]),
    "scores of inputs": lambda net: prune(net, importance="wanda", calibration=DATA),
    "recover": recover,
    "no recovery": lambda net: recover(net, "none"),
    "loss of a search": lambda net: evaluate_pruned(
        PlainTask(net, lambda output, batch: output.sum()),
        {"3": torch.ones(8, 8, dtype=torch.bool)},
        [{"input": DATA[0][0]}],
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_every_module_keeps_its_mode(way):
    net = network()
    before = modes(net)
    WAYS[way](net)
    assert modes(net) == before


def test_failed_recovery_leaves_the_modes():
    net = network()
    before = modes(net)
    with pytest.raises(sf.InvalidSetting):
        sf.recover(net, prune(net, layers="3"), DATA, None, epochs=1, trainer=TRAINER)  # it returns no loss
    assert modes(net) == before


@pytest.mark.parametrize(("frozen", "evaluating"), [(True, False), (False, False), (False, True)])
def test_frozen_norm_keeps_its_statistics(frozen, evaluating):
    net = network(frozen=frozen)
    if evaluating:
        net.eval()  # as pretrained networks arrive
    recover(net)
    assert bool(net[1].running_mean.any()) == (not frozen)
