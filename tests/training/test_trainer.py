"""Settings of the trainer: what is rejected, and what changes the weights that are trained."""

import os

import pytest

from sparsefront.errors import InvalidSetting
from sparsefront.training.recipe import Recipe
from sparsefront.training.trainer import TrainerSettings


@pytest.mark.parametrize(
    "bad",
    [
        {"accelerator": "tpu"},
        {"precision": "8"},
        {"devices": 0},
        {"accumulate_grad_batches": 0},
        {"limit_batches": 0},
        {"ddp_comm_hook": "fp8"},
        {"compile": "all"},
    ],
    ids=lambda bad: next(iter(bad)),
)
def test_impossible_settings_are_rejected(bad):
    with pytest.raises(InvalidSetting) as rejected:
        TrainerSettings(**bad)
    assert rejected.value.key == next(iter(bad))


@pytest.mark.parametrize("ema", [0.0, 1.0, -0.5])
def test_an_average_has_a_decay_between_0_and_1(ema):
    with pytest.raises(InvalidSetting, match="ema"):
        Recipe(ema=ema)


def test_a_few_processes_may_share_a_core(monkeypatch, caplog):
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    TrainerSettings(accelerator="cpu", devices=8, num_nodes=2).check()
    assert "trainer.devices=8: this CPU has 2 cores" in caplog.text
    caplog.clear()
    TrainerSettings(accelerator="cpu", devices=2).check()
    assert not caplog.text
    with pytest.raises(InvalidSetting, match=r"^devices=9: trains on the CPU, whose cores take at most 8 processes"):
        TrainerSettings(accelerator="cpu", devices=9).check()


@pytest.mark.parametrize("devices", [1, 2])
def test_a_hook_for_gradients_needs_several_gpus(devices):
    """On CPUs Lightning would leave it out, and say nothing."""
    with pytest.raises(InvalidSetting, match="ddp_comm_hook='?bf16_compress'?: is for several GPUs"):
        TrainerSettings(accelerator="cpu", devices=devices, ddp_comm_hook="bf16_compress").check()


def test_what_changes_the_weights_determines_the_stage():
    plain = TrainerSettings(accelerator="cpu").cache_key()
    exchange = {"devices": 2, "ddp_comm_hook": "bf16_compress"}
    assert (
        TrainerSettings(accelerator="cpu", **exchange).cache_key()
        != TrainerSettings(accelerator="cpu", devices=2).cache_key()
    )
    changes = ({"devices": 2}, {"accumulate_grad_batches": 2}, {"precision": "bf16-mixed"}, {"limit_batches": 3})
    for other in (*changes, {"compile": "blocks"}, {"compile": "network"}):
        assert TrainerSettings(accelerator="cpu", **other).cache_key() != plain
    for same in ({"checkpoint": False}, {"progress_bar": False}):
        assert TrainerSettings(accelerator="cpu", **same).cache_key() == plain


def test_ddp_broadcasts_running_statistics_alone():
    """Masks, positions and counts are the same on every rank, and would cost a broadcast in every step."""
    import torch
    from torch import nn

    from sparsefront.networks import BUFFER
    from sparsefront.tasks.classification import ImageClassification
    from sparsefront.training.fit import _never_broadcast

    net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    net[0].register_buffer(BUFFER, torch.ones(4, 4, dtype=torch.bool), persistent=False)
    net[0].register_buffer("positions", torch.arange(4))
    left_out = _never_broadcast(ImageClassification(net, num_classes=4))
    assert left_out == [f"net.0.{BUFFER}", "net.0.positions", "net.1.num_batches_tracked"]


@pytest.mark.parametrize(("precision", "fused"), [("32-true", True), ("bf16-mixed", True), ("16-mixed", False)])
def test_an_optimizer_is_fused_where_gradients_need_no_unscaling(monkeypatch, precision, fused):
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert TrainerSettings(precision=precision).fuses_optimizer == fused
    assert not TrainerSettings(accelerator="cpu", precision=precision).fuses_optimizer


@pytest.mark.parametrize(
    ("settings", "lays"),
    [({"precision": "32-true"}, False), ({"precision": "bf16-mixed"}, True), ({"precision": "16-mixed"}, True)],
)
def test_filters_lie_channels_last_for_products_of_16_bits(monkeypatch, settings, lays):
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert TrainerSettings(**settings).lays_channels_last == lays
    assert not TrainerSettings(devices=2, exchange_gradients="after_backward", **settings).lays_channels_last
    assert not TrainerSettings(**settings | {"accelerator": "cpu", "precision": "auto"}).lays_channels_last
