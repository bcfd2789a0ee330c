"""A data set's data module may be any of Lightning's: without generators, with pairs as batches, prepared by its hooks."""

from pathlib import Path
from typing import Any

import own_rows
import pytest
import torch
from hydra.core.hydra_config import HydraConfig
from pytorch_lightning import LightningDataModule
from safetensors.torch import load_file
from torch.utils.data import DataLoader, IterableDataset, TensorDataset, random_split

from sparsefront.data.digits import Digits
from sparsefront.errors import InvalidSetting
from sparsefront.pipeline import run_experiment
from sparsefront.results.record import Result

QUICK = [
    "debug=tiny",
    "trainer=cpu",
    "measure.device=cpu",
    "pattern=n_m",
    "model.dim=64",
    "model.depth=1",
    "kernel=none",
]
QUICK += ["dataset=digits"]


class Plain(LightningDataModule):
    """As a tutorial writes it: nothing is there before `prepare_data` and `setup`, and nothing has a generator."""

    classes = 2
    workers = 0

    def __init__(self, batch_size: int) -> None:
        super().__init__()
        self.batch_size = batch_size
        self.calls: list[str | None] = []

    def prepare_data(self) -> None:
        self.calls.append("prepare")
        self.drawn = torch.Generator().manual_seed(0)

    def setup(self, stage: str | None = None) -> None:
        self.calls.append(stage)
        labels = torch.arange(60) % self.classes
        rows = TensorDataset(torch.randn(60, 1, 8, 8, generator=self.drawn), labels)
        if stage == "fit":
            self.train, self.val = random_split(rows, [40, 20])
        if stage == "test":
            self.test = rows

    def train_dataloader(self) -> Any:
        return DataLoader(self.train, self.batch_size, shuffle=True, num_workers=self.workers)

    def val_dataloader(self) -> Any:
        return DataLoader(self.val, self.batch_size)

    def test_dataloader(self) -> Any:
        return DataLoader(self.test, self.batch_size, shuffle=True)


class ByName(Plain):
    def collate(self, rows: list) -> dict[str, torch.Tensor]:
        return {"x": torch.stack([x for x, _ in rows]), "labels": torch.stack([label for _, label in rows])}

    def train_dataloader(self) -> Any:
        return DataLoader(self.train, self.batch_size, shuffle=True, collate_fn=self.collate)


class WholeBatches(Plain):
    def train_dataloader(self) -> Any:
        images, labels = self.train.dataset.tensors
        return DataLoader([(images[:20], labels[:20]), (images[20:40], labels[20:40])], batch_size=None, shuffle=True)


class Triples(Plain):
    workers = 1

    def train_dataloader(self) -> Any:
        self.train = TensorDataset(*self.train.dataset.tensors, torch.zeros(60))
        return super().train_dataloader()


class OtherNames(Plain):
    def train_dataloader(self) -> Any:
        return DataLoader([{"pixel_values": torch.zeros(1, 8, 8), "labels": 0}] * 9, self.batch_size)


class TooManyClasses(Plain):
    classes = 11


class Streamed(Plain):
    def train_dataloader(self) -> Any:
        class Stream(IterableDataset):
            def __iter__(self) -> Any:
                yield torch.zeros(1, 8, 8), 0

        return DataLoader(Stream(), self.batch_size)


class OwnIteration(Plain):
    def train_dataloader(self) -> Any:
        class Ones(DataLoader):
            def __iter__(self) -> Any:
                return ((torch.ones_like(x), y) for x, y in super().__iter__())

        return Ones(super().train_dataloader().dataset, self.batch_size)


class Several(Plain):
    def test_dataloader(self) -> Any:
        return [super().test_dataloader()]


class OnGpu(Plain):
    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        return batch


class NoVal(Plain):
    val_dataloader = LightningDataModule.val_dataloader


@pytest.fixture
def own(composed, monkeypatch):
    """The configuration of a run whose data set, of ten classes, gives this data module."""

    def make(module: Any, *overrides: str) -> Any:
        monkeypatch.setattr(Digits, "data_module", lambda self, *, batch_size, **_: module(batch_size))
        return composed(*QUICK, *overrides)

    return make


def row() -> Result:
    """What the run in this process has written."""
    return Result.from_json((Path(HydraConfig.get().runtime.output_dir) / "row.json").read_text())


@pytest.mark.parametrize("module", [Plain, ByName, WholeBatches])
def test_any_data_module_trains(own, module):
    run_experiment(own(module, "recovery=finetune"))
    assert 0 <= row().quality.masked <= 1


def test_without_val_nothing_can_be_chosen(own):
    run_experiment(own(NoVal, "dataset.valid_fraction=0"))
    assert row().quality.val_sparse is None


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (lambda batch_size: [batch_size], "gives a LightningDataModule as its data_module, and not list"),
        (Triples, "train gives lists of 3 as batches; image_classification takes pairs"),
        (OtherNames, "train gives dicts with pixel_values, labels as batches; .* with x and labels"),
        (TooManyClasses, "train has labels of class 10, and info names 10 classes"),
        (Streamed, "gives an IterableDataset for train: one DataLoader over a dataset with a length"),
        (OwnIteration, "gives Ones for train, whose own iteration a run cannot repeat: one DataLoader"),
        (Several, "gives list for test: one DataLoader"),
        (OnGpu, "defines on_after_batch_transfer, which evaluation never calls"),
        (NoVal, "has no val_dataloader"),
    ],
)
def test_unusable_input_is_told_first(own, monkeypatch, module, message):
    monkeypatch.setattr("sparsefront.stages.dense.fit", None)
    with pytest.raises(InvalidSetting, match=f"^dataset=digits: {message}"):
        run_experiment(own(module))


# On several ranks, and after a kill: a module that other processes can import.

OWN = ["dataset._target_=own_rows.Own", "trainer.limit_batches=null", "recipe.batch_size=4", "recipe.epochs=2"]
ONE_TRAINING = [*QUICK, *OWN, "stages=[dense]", "trainer.checkpoint_seconds=0"]


def rows_seen(folder: Path) -> list[list[int]]:
    """Of each rank, in the order of training; the first batch of all is looked at beforehand."""
    return [[int(row) for row in file.read_text().split()][4:] for file in sorted(folder.iterdir())]


@pytest.mark.parametrize("sampler", ["torch", "own"])
def test_two_ranks_share_an_epoch(composed, served_ranks, tmp_path, monkeypatch, sampler):
    (tmp_path / "seen").mkdir()
    monkeypatch.setenv(own_rows.SEEN, str(tmp_path / "seen"))
    monkeypatch.syspath_prepend(str(Path(own_rows.__file__).parent))
    run_experiment(composed(*ONE_TRAINING, f"+dataset.sampler={sampler}", "trainer.devices=2"))
    first, second = rows_seen(tmp_path / "seen")
    assert len(first) == len(second) == 40
    for epoch in (slice(0, 20), slice(20, 40)):
        assert len({*first[epoch], *second[epoch]}) == 40
    assert first[:20] != first[20:]


@pytest.mark.parametrize("sampler", ["torch", "own"])
def test_killed_process_ends_the_same(composed, tmp_path, monkeypatch, sampler):
    """Its order, its noise and its state."""

    def train(folder: str) -> dict[str, torch.Tensor]:
        run_experiment(composed(*ONE_TRAINING, f"+dataset.sampler={sampler}", f"cache_dir={tmp_path / folder}"))
        (file,) = (tmp_path / folder / "dense").glob("*/weights.safetensors")
        return load_file(file)

    whole = train("whole")
    monkeypatch.setenv(own_rows.KILLED_AFTER, "15")
    with pytest.raises(own_rows.Killed):
        train("killed")
    monkeypatch.delenv(own_rows.KILLED_AFTER)
    monkeypatch.setenv(own_rows.SEEN, str(tmp_path))
    resumed = train("killed")
    assert len((tmp_path / "0.txt").read_text().splitlines()) == 11, "one looked at, and an epoch"
    assert all(torch.equal(tensor, resumed[name]) for name, tensor in whole.items())
