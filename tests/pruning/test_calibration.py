"""Scores from training data: gradients and inputs batch by batch, the same over several processes, without a trace."""

from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

from sparsefront.importance.fisher import Fisher
from sparsefront.importance.magnitude import Magnitude
from sparsefront.importance.movement import Movement
from sparsefront.importance.obs import OptimalBrainSurgeon
from sparsefront.importance.random import Random
from sparsefront.importance.taylor import Taylor
from sparsefront.importance.wanda import Wanda
from sparsefront.pruning.calibration import NetworkCalibration, score_weights
from sparsefront.pruning.training_masks import AccumulateScores
from sparsefront.tasks.classification import ImageClassification


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.dropout = nn.Dropout(0.5)
        self.layer = nn.Linear(6, 3)

    def forward(self, x):
        return self.layer(self.dropout(x.flatten(1)))


def setting() -> tuple[ImageClassification, list[dict[str, torch.Tensor]]]:
    torch.manual_seed(0)
    task = ImageClassification(Net(), num_classes=3)
    return task, [{"x": torch.randn(4, 1, 2, 3), "labels": torch.randint(3, (4,))} for _ in range(3)]


def test_gradients_of_each_batch():
    task, batches = setting()
    seen = list(NetworkCalibration(task, ["layer"], lambda: batches).gradients(2))
    assert len(seen) == 2
    task.net.eval()
    for gradients, batch in zip(seen, batches, strict=False):
        loss = nn.functional.cross_entropy(task.net(x=batch["x"]), batch["labels"])
        torch.testing.assert_close(gradients["layer"], torch.autograd.grad(loss, task.net.layer.weight)[0])


class Tied(Net):
    """Two layers of one weight, which are given different inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)
        self.second.weight = self.first.weight

    def forward(self, x):
        return self.layer(self.second(self.first(x.flatten(1)).relu()))


@pytest.mark.parametrize("importance", [Wanda(batches=2), Random(), Magnitude()], ids=lambda chosen: chosen.name)
def test_layers_of_one_weight(importance):
    _, batches = setting()
    task = ImageClassification(Tied(), num_classes=3)
    tied = score_weights(task, ["first", "second"], importance=importance, open_loader=lambda: batches)
    assert torch.equal(tied["first"], tied["second"])
    if importance.source == "inputs":
        parts = [score_weights(task, [name], importance=importance, open_loader=lambda: batches) for name in tied]
        torch.testing.assert_close(tied["first"], (parts[0]["first"] + parts[1]["second"]) / 2)


def test_scoring_begins_with_first_batch():
    """A loader that goes on where it stopped would give a resumed training other masks than an undisturbed one."""
    task, batches = setting()
    opened = []

    def open_loader():
        opened.append(len(opened))
        return iter(batches)

    first, second = (
        score_weights(task, ["layer"], importance=Taylor(batches=2), open_loader=open_loader) for _ in range(2)
    )
    assert torch.equal(first["layer"], second["layer"]) and len(opened) == 2


def test_network_is_unchanged_after_errors():
    task, batches = setting()
    task.net.train()
    del batches[1]["labels"]
    with pytest.raises(KeyError):
        score_weights(task, ["layer"], importance=Taylor(batches=2), open_loader=lambda: batches)
    with pytest.raises(ZeroDivisionError):
        NetworkCalibration(task, ["layer"], lambda: batches).input_sums(1, lambda x: 1 / 0)
    assert torch.is_grad_enabled() and task.net.training
    assert task.net.layer.weight.grad is None and not task.net.layer._forward_pre_hooks


def test_layer_without_gradient_is_named():
    task, batches = setting()
    task.net.idle = nn.Linear(2, 2)
    with pytest.raises(ValueError, match="idle"):
        score_weights(task, ["layer", "idle"], importance=Taylor(batches=1), open_loader=lambda: batches)


# Three batches for two ranks (one reads two of them), and one batch, of which the second rank reads none.
REDUCED = [kind(batches=batches) for kind in (Taylor, Fisher, Wanda, OptimalBrainSurgeon) for batches in (3, 1)]


def _scores() -> list[torch.Tensor]:
    task, batches = setting()
    return [
        score_weights(task, ["layer"], importance=importance, open_loader=lambda: batches)["layer"]
        for importance in REDUCED
    ]


def _movement(rank: int | None) -> torch.Tensor:
    """Of two optimizer steps, each on two batches: one per rank, or (rank None) both in this process."""
    torch.manual_seed(0)
    task, _ = setting()
    task.net.eval()
    batches = [{"x": torch.randn(4, 1, 2, 3), "labels": torch.randint(3, (4,))} for _ in range(4)]
    net = task.net if rank is None else nn.parallel.DistributedDataParallel(task.net)
    movement, optimizer = AccumulateScores(task.net, ["layer"], Movement()), torch.optim.SGD(net.parameters(), lr=0.5)
    for step in (batches[:2], batches[2:]):
        optimizer.zero_grad()
        mine = step if rank is None else [step[rank]]
        (sum(task.loss(net(x=batch["x"]), batch) for batch in mine) / len(mine)).backward()
        movement.on_before_optimizer_step(SimpleNamespace(scaler=None), task, optimizer)
        optimizer.step()
    return movement.sums()["layer"]


def _found_by_rank(rank: int, store: str) -> tuple[list[torch.Tensor], torch.Tensor]:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    try:
        return _scores(), _movement(rank)
    finally:
        dist.destroy_process_group()


def _second_rank(_: int, store: str, file: str) -> None:
    torch.set_num_threads(1)
    torch.save(_found_by_rank(1, store), file)


def test_two_processes_score_as_one(rank_server, tmp_path):
    alone, moved_alone = _scores(), _movement(None)
    store, file = str(tmp_path / "store"), str(tmp_path / "second.pt")
    other = mp.start_processes(_second_rank, (store, file), nprocs=1, join=False, start_method="forkserver")
    first, moved = _found_by_rank(0, store)
    while not other.join():
        pass
    second, moved_there = torch.load(file)
    for importance, expected, here, there in zip(REDUCED, alone, first, second, strict=True):
        assert torch.equal(here, there), f"{importance}: the ranks would make different masks"
        torch.testing.assert_close(here, expected, msg=lambda text, i=importance: f"{i}: {text}")
    assert torch.equal(moved, moved_there) and (moved != 0).any()
    torch.testing.assert_close(moved, moved_alone)
