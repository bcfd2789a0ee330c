"""recover: every recovery on a plain training loop, with pruned weights exactly zero."""

import re
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import sparsefront as sf
from sparsefront.errors import InvalidSetting
from sparsefront.importance.taylor import Taylor
from sparsefront.pruning.calibration import NetworkCalibration
from sparsefront.recovery import Finetune, SquareHead
from sparsefront.recovery.base import Recovery

SETTINGS = {"epochs": 2, "lr": 1e-2, "trainer": sf.TrainerSettings(accelerator="cpu", checkpoint=False)}
TRAINS_NOTHING = {"epochs": None, "lr": None}


def recovered(trained, masks, net, **arguments):
    return sf.recover(net, masks, trained.loader, F.cross_entropy, **{**SETTINGS, **arguments})


def zeros_where_pruned(net, masks) -> bool:
    return all(not net.get_submodule(name).weight[~mask].any() for name, mask in masks.items())


# of a network without blocks
SETTINGS_OF = {"square_head": SquareHead(hidden_layers=["1", "3"])}


@pytest.mark.parametrize(
    "recovery",
    [
        "none",
        "finetune",
        "lr_rewind",
        "weight_rewind",
        "distill",
        "square_head",
        "obs_update",
        "least_squares",
        "sparse_swaps",
        "sr_ste",
    ],
)
def test_every_recovery_runs(trained, recovery):
    net = trained.net()
    masks = sf.prune(net, "n_m", 0.75, layers=["0", "2"], tell=len)
    pruned, distance = trained.loss(net), trained.distance(net)
    history = {0: trained.initial.state_dict()}
    after = recovered(
        trained,
        masks,
        net,
        recovery=SETTINGS_OF.get(recovery, recovery),
        **(TRAINS_NOTHING if recovery in ("none", "obs_update", "least_squares", "sparse_swaps") else {}),
        dense_net=trained.dense,
        initial_net=trained.initial,
        epoch_weights=history,
    )
    assert zeros_where_pruned(net, after) and after.sparsity == 0.75
    if recovery in ("finetune", "lr_rewind", "distill", "square_head"):
        assert trained.loss(net) < pruned
    if recovery in ("obs_update", "least_squares"):
        assert trained.distance(net) < distance, "it brings outputs back, whatever the loss"
    if recovery == "sparse_swaps":
        assert trained.distance(net) <= distance, "layers whose exchanges raise the loss stay"
    assert len(after.rounds) == 1 and after.rounds[0].sparsity_achieved == 0.75
    assert not any("mask" in name for name, _ in net.named_buffers()), "nothing is left on the network"
    assert list(net.state_dict()) == list(trained.dense.state_dict())
    assert sf.swap(net, after, trained.x[:4]).layers["2"].is_sparse


@dataclass(frozen=True)
class Forgetful(Recovery):
    """A user's own recovery that breaks what `recover` promises."""

    sets: tuple[str, ...]
    name: ClassVar[str] = "forgetful"

    def recover(self, round):
        round.masked.set({layer: round.masks[layer] for layer in self.sets})


@pytest.mark.parametrize(
    ("sets", "why"),
    [
        ((), "left 0 without a mask: `recover` passes the round's masks to round.masked.set"),
        (("0",), "left 2 without a mask"),
        (("0", "2"), "returned NoneType from `recover`, which returns a RoundRecord"),
    ],
)
def test_own_recovery_that_breaks_its_promise(trained, sets, why):
    net = trained.net()
    masks = sf.prune(net, "n_m", 0.5, layers=["0", "2"], tell=len)
    with pytest.raises(InvalidSetting, match=f"^recovery=forgetful: {re.escape(why)}"):
        recovered(trained, masks, net, recovery=Forgetful(sets), **TRAINS_NOTHING)


@pytest.mark.parametrize("schedule", ["iterative", "gradual"])
def test_schedule_goes_on(trained, schedule):
    net = trained.net()
    masks = sf.prune(net, "element_wise", 0.75, schedule=schedule, tell=len)
    assert masks.sparsity < 0.5
    after = recovered(trained, masks, net)
    assert after.sparsity == pytest.approx(0.75, abs=1e-3) and zeros_where_pruned(net, after)
    assert all(not (after[name] & ~masks[name]).any() for name in masks)
    assert len(after.rounds) == (4 if schedule == "iterative" else 1)
    assert len(recovered(trained, after, net).rounds) == 1, "then the schedule is over"


def test_taylor_from_training_calibrates_once(trained, monkeypatch):
    net, importance = trained.net(), Taylor(batches=2, from_training=True)
    batches = [(trained.x[i : i + 64], trained.y[i : i + 64]) for i in range(0, 256, 64)]
    masks = sf.prune(
        net,
        "element_wise",
        0.5,
        importance=importance,
        schedule="gradual",
        calibration=batches,
        loss=F.cross_entropy,
        tell=len,
    )
    monkeypatch.setattr(NetworkCalibration, "gradients", None)
    assert recovered(trained, masks, net).sparsity == pytest.approx(0.5, abs=1e-3)


class WithLoss(nn.Module):
    """Called by names, and gives its own loss, as Hugging Face's networks do."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, features=None, labels=None):
        logits = self.inner(features)
        return {"logits": logits} | ({} if labels is None else {"loss": F.cross_entropy(logits, labels)})


@pytest.mark.parametrize("recovery", ["finetune", "distill", "obs_update"])
def test_network_with_its_own_loss(trained, recovery):
    net, dense = WithLoss(trained.net()), WithLoss(trained.net())
    batches = [{"features": trained.x[i : i + 64], "labels": trained.y[i : i + 64]} for i in range(0, 256, 64)]
    masks = sf.prune(net, "n_m", 0.5, importance="taylor", calibration=batches, layers="*.2", tell=len)
    settings = SETTINGS | (TRAINS_NOTHING if recovery == "obs_update" else {})
    after = sf.recover(net, masks, batches, recovery=recovery, dense_net=dense, **settings)
    assert list(after) == ["inner.2"] and zeros_where_pruned(net, after)


DEVICES = sf.TrainerSettings(accelerator="cpu", checkpoint=False, devices=2)
NODES = sf.TrainerSettings(accelerator="cpu", checkpoint=False, num_nodes=3)


@pytest.mark.parametrize("trainer, key", [(DEVICES, "trainer.devices=2"), (NODES, "trainer.num_nodes=3")])
@pytest.mark.parametrize("recovery", ["finetune", "obs_update"])
def test_devices_that_nothing_starts(trained, trainer, key, recovery):
    net = trained.net()
    masks = sf.prune(net, "n_m", 0.5, tell=len)
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    with pytest.raises(InvalidSetting, match=rf"^{key}: sf.recover trains in this process alone.*run.py {key}$"):
        sf.recover(
            net, masks, trained.loader, F.cross_entropy, recovery=recovery, dense_net=trained.dense, trainer=trainer
        )
    assert all(torch.equal(before[name], tensor) for name, tensor in net.state_dict().items())


def recover_from(net, masks, batches, **arguments):
    return sf.recover(net, masks, batches, F.cross_entropy, **{**SETTINGS, **arguments})


@pytest.mark.parametrize(
    "arguments, key",
    [
        ({"lr": 1000.0}, "lr"),
        ({"lr": None, "recipe": sf.Recipe(lr=1000.0)}, "lr"),
        ({"lr": None, "recovery": Finetune(lr=1000.0)}, "recovery.lr"),
        ({"lr": 1000.0, "recovery": "lr_rewind"}, "lr"),
    ],
)
def test_diverging_training_names_its_argument(trained, arguments, key):
    net = trained.net()
    masks = sf.prune(net, "n_m", 0.5, tell=len)
    batches = [(trained.x * 1e30, trained.y)] * 4
    with pytest.raises(InvalidSetting, match=rf"diverged: .*; lower {key}\. "):
        recover_from(net, masks, batches, **arguments)


def test_masks_of_a_convolution(cnn):
    weight = cnn.body.weight  # [16, 8, 3, 3]
    keep = torch.rand(weight.shape) < 0.5
    data = [(torch.randn(2, 3, 6, 6), torch.randint(0, 3, (2,)))]
    settings = SETTINGS | {"epochs": 1}
    sf.recover(cnn, {"body": keep.movedim(1, -1).flatten(1)}, data, F.cross_entropy, **settings)
    assert torch.equal(weight != 0, keep)
    with pytest.raises(
        sf.InvalidSetting, match=r"masks\['body'\].*\[16, 8, 3, 3\], as the weight or \[16, 72\], as its matrix"
    ):
        sf.recover(cnn, {"body": keep.permute(2, 3, 1, 0)}, data, F.cross_entropy, **settings)
