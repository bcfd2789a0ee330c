"""Batches in the forms that loaders give them: in tensors that are used again, and without an end."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import sparsefront as sf
from sparsefront.errors import InvalidSetting
from sparsefront.tasks import plain_task
from sparsefront.tasks.plain_task import TARGET, NamedBatches, read_batches

TRAINER = sf.TrainerSettings(accelerator="cpu", checkpoint=False)


class Reusing:
    """Eight batches in the same two tensors, of which one holds what is in `form`."""

    def __init__(self, form=lambda x, y: (x, y)) -> None:
        self.x, self.y, self.form = torch.zeros(4, 8), torch.zeros(4, dtype=torch.long), form

    def __iter__(self):
        for label in range(8):
            self.x.zero_()
            self.x[:, label] = 1
            self.y.fill_(label)
            yield self.form(self.x, self.y)


class Stream:
    """Counts how many batches are read of it."""

    def __init__(self, batches=range(10**9)) -> None:
        self.read, self.batches = 0, batches

    def __iter__(self):
        for _ in self.batches:
            self.read += 1
            yield torch.randn(4, 8), torch.randint(0, 4, (4,))


class StreamedDataset(IterableDataset):
    def __init__(self) -> None:
        self.stream = Stream()

    def __iter__(self):
        return iter(self.stream)


class Numbered(Stream):
    def __len__(self) -> int:
        return 3


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 8))


def recovered(batches, **arguments) -> nn.Module:
    net = network()
    masks = sf.prune(net, "n_m", 0.5, tell=len)
    sf.recover(net, masks, batches, F.cross_entropy, **{"trainer": TRAINER, **arguments})
    return net


FORMS = {
    "a tuple": lambda x, y: (x, y),
    "a list": lambda x, y: [x, y],
    "several inputs": lambda x, y: ([x], y),
    "targets by name": lambda x, y: (x, {"label": y, "more": (y,)}),
    "an array as target": lambda x, y: (x, y.numpy()),
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_each_batch_that_is_kept_is_a_copy(form):
    batches = list(NamedBatches(Reusing(form), nn.Linear(8, 8), argument="data").train_dataloader())
    assert [int(next(iter(batch.values())).argmax(1)[0]) for batch in batches] == list(range(8))
    targets = [batch[TARGET] for batch in batches]
    labels = [target["more"][0] if isinstance(target, dict) else target for target in targets]
    assert [int(label[0]) for label in labels] == list(range(8))


def test_a_loader_that_reuses_its_tensors_trains_as_a_list_does():
    given = [(x.clone(), y.clone()) for x, y in Reusing()]
    same = [recovered(batches, epochs=2, lr=1e-2).state_dict() for batches in (Reusing(), given)]
    assert all(torch.equal(same[0][name], same[1][name]) for name in same[0])


@pytest.mark.parametrize("recovery", ["obs_update", "sparse_swaps"])
def test_a_data_loader_that_reuses_its_tensors_calibrates_as_a_list_does(recovery):
    """Here the collate function does: these recoveries keep the batches that they read."""
    buffer = torch.zeros(1, 8)

    def collate(rows):
        buffer.copy_(torch.stack(rows))
        return (buffer,)

    given = list(torch.randn(16, 8))
    loader = DataLoader(given, batch_size=1, collate_fn=collate)
    nets = []
    for batches in (loader, [(row[None].clone(),) for row in given]):
        net = network()
        masks = sf.prune(net, "n_m", 0.5, tell=len)
        kept = sf.recover(net, masks, batches, recovery=recovery, dense_net=network(), trainer=TRAINER)
        nets.append(kept["2"])
    assert torch.equal(*nets)


@pytest.mark.parametrize("importance", [sf.importance.Wanda(batches=2), "magnitude"])
def test_of_a_stream_no_more_is_read_for_scores_than_they_ask_for(importance):
    stream = Stream()
    sf.prune(network(), "n_m", 0.5, importance=importance, calibration=stream, tell=len)
    assert stream.read == getattr(importance, "batches", 1)


@pytest.mark.parametrize(
    "arguments, read",
    [
        ({"epochs": 2, "trainer": sf.TrainerSettings(accelerator="cpu", checkpoint=False, limit_batches=4)}, 4),
        ({"recovery": sf.recovery.ObsUpdate(batches=3, batch_norm_batches=2), "dense_net": network}, 3),
        ({"recovery": "none"}, 100),
    ],
)
def test_of_a_stream_no_more_is_read_than_a_recovery_asks_for(arguments, read):
    stream = Stream()
    recovered(stream, **arguments)
    assert stream.read == read


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


def test_own_iteration_is_calibrated_on():
    net, inputs = network(), []
    net.register_forward_pre_hook(lambda _, args, named: inputs.append([*args, *named.values()][0]), with_kwargs=True)
    importance = sf.importance.Wanda(batches=2)
    sf.prune(net, "n_m", 0.5, importance=importance, calibration=Ones(ROWS, batch_size=4), tell=len)
    assert {float(x.unique()) for x in inputs} == {1.0}


def test_own_iteration_of_unusable_kinds_is_refused(monkeypatch):
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


@pytest.mark.parametrize(
    "stream",
    [Stream, lambda: itertools.cycle([(torch.zeros(4, 8), torch.zeros(4))]), lambda: iter(Stream())],
    ids=["iterable", "cycle", "generator"],
)
def test_a_stream_that_nothing_bounds_is_refused(stream, monkeypatch):
    monkeypatch.setattr(plain_task, "MOST_BATCHES", 50)
    with pytest.raises(InvalidSetting, match="train_dataloader=.*limit_batches"):
        recovered(stream(), epochs=1)


def test_so_is_a_data_loader_of_one(monkeypatch):
    monkeypatch.setattr(plain_task, "MOST_BYTES", 2**12)
    with pytest.raises(InvalidSetting, match="train_dataloader=DataLoader: has no length"):
        recovered(DataLoader(StreamedDataset(), batch_size=None), epochs=1)


def test_a_length_bounds_a_stream_and_what_is_left_out_is_told(caplog):
    read = read_batches(Numbered(), None, argument="train_dataloader")
    assert len(read) == 3
    assert "train_dataloader has a length of 3 and gives more batches" in caplog.text
    caplog.clear()
    assert len(read_batches(Numbered(range(3)), 2, argument="train_dataloader")) == 2 and not caplog.text
