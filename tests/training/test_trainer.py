"""Settings of the trainer: what is rejected, and what changes the weights that are trained."""

import pytest

from sparsefront.errors import InvalidSetting
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


def test_settings_of_weights_are_keyed():
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
