"""A data set with a module of a user, importable by the other ranks; it writes down which rows are trained on."""

import os
import random
from pathlib import Path

import torch
from pytorch_lightning import LightningDataModule
from torch.utils.data import DataLoader, DistributedSampler, RandomSampler, Sampler, TensorDataset, random_split

from sparsefront import distributed
from sparsefront.data.digits import Digits
from sparsefront.settings_class import settings_class

SEEN, KILLED_AFTER = "OWN_ROWS_SEEN", "OWN_ROWS_KILLED_AFTER"  # a folder, and the batches trained on before the end


class Killed(Exception):
    pass


class Shuffled(Sampler[int]):
    """As a user writes it: of the generator of all."""

    def __init__(self, rows: int) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return self.rows

    def __iter__(self):
        random.random()
        yield from torch.randperm(self.rows).tolist()


SAMPLERS = {"torch": RandomSampler, "own": lambda rows: Shuffled(len(rows)), "distributed": DistributedSampler}


class Module(LightningDataModule):
    """Draws its split, its order and its noise from the generators that everything else uses, and has a state."""

    def __init__(self, batch_size: int, sampler: str) -> None:
        super().__init__()
        self.batch_size, self.sampler, self.batches = batch_size, sampler, 0

    def setup(self, stage: str | None = None) -> None:
        images, labels = torch.rand(60, 1, 8, 8), torch.arange(60) % 2
        self.train, self.val = random_split(TensorDataset(images, labels, torch.arange(60)), [40, 20])

    def train_dataloader(self) -> DataLoader:
        sampler = SAMPLERS[self.sampler](self.train)
        return DataLoader(self.train, self.batch_size, sampler=sampler, collate_fn=self.noisy)

    def noisy(self, rows: list) -> tuple[torch.Tensor, torch.Tensor]:
        images, labels, numbers = torch.utils.data.default_collate(rows)
        self.batches += 1
        if self.batches == int(os.environ.get(KILLED_AFTER, 0)):
            raise Killed
        if folder := os.environ.get(SEEN):
            with open(Path(folder) / f"{distributed.rank()}.txt", "a") as file:
                print(*numbers.tolist(), file=file)
        return images + self.batches * torch.randn_like(images), labels

    def val_dataloader(self) -> DataLoader:
        return DataLoader([row[:2] for row in self.val], self.batch_size)

    test_dataloader = val_dataloader

    def state_dict(self) -> dict[str, int]:
        return {"batches": self.batches}

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        self.batches = state_dict["batches"]


@settings_class()
class Own(Digits):
    sampler: str = "torch"

    def data_module(self, *, batch_size, **_):
        return Module(batch_size, self.sampler)
