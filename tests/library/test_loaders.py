"""Batches in the forms that loaders give them: in tensors that are used again, and without an end."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import sparsefront as sf
from sparsefront.errors import InvalidSetting
from sparsefront.tasks import plain_task

TRAINER = sf.TrainerSettings(accelerator="cpu", checkpoint=False)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 8))


def recovered(batches, **arguments) -> nn.Module:
    net = network()
    masks = sf.prune(net, "n_m", 0.5, tell=len)
    sf.recover(net, masks, batches, F.cross_entropy, **{"trainer": TRAINER, **arguments})
    return net


class Ones(DataLoader):
    """Yields its batches as multiples of one, a new multiple each time: easy to recognize."""

    iterations = 0

    def __iter__(self):
        self.iterations += 1
        return ((torch.full_like(x, self.iterations), y) for x, y in super().__iter__())


class KeepsWorkers(DataLoader):
    """One endless iterator for all epochs, as yolov5 and timm keep their workers."""

    def __init__(self, *arguments, **settings) -> None:
        super().__init__(*arguments, **settings)
        self.length, endless = (
            len(self.batch_sampler),
            itertools.chain.from_iterable(itertools.repeat(self.batch_sampler)),
        )
        object.__setattr__(self, "batch_sampler", endless)
        self.running = super().__iter__()

    def __len__(self) -> int:
        return self.length

    def __iter__(self):
        return itertools.islice(self.running, self.length)


class Shorter(Ones):
    def __iter__(self):
        return itertools.islice(super().__iter__(), 1)


class Prefetches:
    """A loader that is no DataLoader, as timm's PrefetchLoader."""

    def __init__(self, *arguments, **settings) -> None:
        self.loader = Ones(*arguments, **settings)

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self):
        return iter(self.loader)


ROWS = TensorDataset(torch.randn(12, 8), torch.randint(0, 8, (12,)))
ROWS_AS_BATCHES = [ROWS[:4]]


@pytest.mark.parametrize(
    ("loader", "seen"), [(Ones, [1, 1, 1, 2, 2, 2]), (Prefetches, [1, 1, 1, 2, 2, 2]), (KeepsWorkers, None)]
)
def test_own_iteration_is_trained_on(loader, seen):
    net, inputs = network(), []
    masks = sf.prune(net, "n_m", 0.5, tell=len)
    net.register_forward_pre_hook(lambda _, args, named: inputs.append([*args, *named.values()][0]), with_kwargs=True)
    sf.recover(net, masks, loader(ROWS, batch_size=4), F.cross_entropy, epochs=2, trainer=TRAINER)
    if seen is None:
        assert torch.equal(torch.cat(inputs), ROWS.tensors[0].repeat(2, 1))
    else:
        assert [float(x.unique()) for x in inputs] == seen


def test_unusable_loaders_are_refused(monkeypatch):
    monkeypatch.setattr(plain_task, "MOST_BATCHES", 50)
    endless = DataLoader(ROWS, batch_sampler=itertools.repeat([0, 1]))
    with pytest.raises(InvalidSetting, match="train_dataloader=DataLoader: has no length"):
        recovered(endless, epochs=1)
    with pytest.raises(InvalidSetting, match="train_dataloader=Shorter: has a length of 3 and gave 1 batches"):
        recovered(Shorter(ROWS, batch_size=4), epochs=1)
    net = network()
    masks = sf.prune(
        net,
        "element_wise",
        0.5,
        importance="taylor",
        schedule="gradual",
        calibration=ROWS_AS_BATCHES,
        loss=F.cross_entropy,
        tell=len,
    )
    with pytest.raises(InvalidSetting, match="train_dataloader=Ones: importance=taylor scores weights during"):
        sf.recover(net, masks, Ones(ROWS, batch_size=4), F.cross_entropy, epochs=1, trainer=TRAINER)
