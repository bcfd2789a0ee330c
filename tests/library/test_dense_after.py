"""recover(dense_after=): the masks hold for the first part of the steps, then all weights train."""

from copy import deepcopy

import pytest
import torch
import torch.nn.functional as F
from torch.optim.optimizer import register_optimizer_step_post_hook

import sparsefront as sf
from sparsefront.errors import InvalidSetting
from sparsefront.recovery.rounds import RunContext

EPOCHS, OF_EPOCH = 4, 8  # optimizer steps of an epoch
AFTER = 0.5


def pruned(trained, pattern="n_m"):
    net = trained.net()
    return net, sf.prune(net, pattern, 0.5, layers=["0", "2"], tell=len)


def recovered(trained, net, masks, loss=F.cross_entropy, context=None, **settings):
    torch.manual_seed(0)
    arguments = {"epochs": EPOCHS, "lr": 1e-2, "dense_after": AFTER, "dense_net": trained.dense} | settings
    trainer = sf.TrainerSettings(accelerator="cpu", checkpoint=context is not None, checkpoint_seconds=0)
    return sf.recover(net, masks, trained.loader, loss, trainer=trainer, context=context, **arguments)


@pytest.mark.parametrize("recovery", ["finetune", "lr_rewind", "distill"])
def test_masks_hold_until_the_step(trained, recovery):
    net, masks = pruned(trained)
    before = trained.loss(net)
    held = []

    def look(*_):
        held.append(all(not net.get_submodule(name).weight[~mask].any() for name, mask in masks.items()))

    handle = register_optimizer_step_post_hook(look)
    after = recovered(trained, net, masks, recovery=recovery)
    handle.remove()
    first = int(AFTER * EPOCHS * OF_EPOCH)
    assert held == [True] * first + [False] * first
    for name, mask in masks.items():
        moved = net.get_submodule(name).weight[~mask] != 0
        assert moved.float().mean() > 0.9, "all but those of units that never fire"
    assert all(mask.all() for mask in after.values()) and after.sparsity == 0
    assert after.pruning.pattern.name == "n_m" and after.pruning.sparsity == 0.5, "as it was trained"
    (record,) = after.rounds
    assert record.updates == [(first, 0.0)] and record.sparsity == 0.5 and record.sparsity_achieved == 0
    assert trained.loss(net) < before


class Killed(Exception):
    pass


@pytest.mark.parametrize("epoch", [2, 4], ids=["under masks", "after they were lifted"])
def test_killed_recovery_ends_the_same(trained, tmp_path, epoch):
    whole, masks = pruned(trained)
    first = recovered(trained, whole, masks)
    batches = 0

    def dies(output, target):
        nonlocal batches
        batches += 1
        if batches == OF_EPOCH * (epoch - 1) + 3:
            raise Killed
        return F.cross_entropy(output, target)

    (tmp_path / "scratch").mkdir()
    context = RunContext(tmp_path / "scratch", tmp_path / "kept")
    with pytest.raises(Killed):
        recovered(trained, pruned(trained)[0], masks, dies, context)
    net, _ = pruned(trained)
    batches = OF_EPOCH * EPOCHS
    again = recovered(trained, net, masks, dies, context)
    assert batches == OF_EPOCH * (2 * EPOCHS - epoch + 1), "it went on after its last epoch"
    assert all(torch.equal(value, net.state_dict()[name]) for name, value in whole.state_dict().items())
    assert again.rounds[0].updates == first.rounds[0].updates and again.sparsity == 0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"dense_after": 1.0}, r"^dense_after=1\.0: must be less than 1"),
        ({"dense_after": "half"}, "^dense_after=half: must be a valid number"),
        ({"recovery": "none", "epochs": None, "lr": None}, "^dense_after=0.5: .*lr_rewind and distill, not of"),
        ({"recovery": "square_head"}, "^dense_after=0.5: is a setting of finetune"),
        ({"backend": "sparse"}, r"^recovery\.dense_after=0\.5: .*recovery\.backend=dense, not sparse"),
        ({"pattern": sf.patterns.ElementWise(), "schedule": sf.schedule.Gradual()}, r"not of gradual"),
    ],
)
def test_refusals_before_training(trained, settings, message):
    net = trained.net()
    pruning = {name: settings.pop(name) for name in ("pattern", "schedule") if name in settings}
    masks = sf.prune(net, pruning.pop("pattern", "n_m"), 0.5, layers=["0", "2"], tell=len, **pruning)
    before = deepcopy(net.state_dict())
    with pytest.raises(InvalidSetting, match=message):
        recovered(trained, net, masks, **settings)
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
